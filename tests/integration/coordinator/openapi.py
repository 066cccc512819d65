"""Writes docs/openapi.json anew from the code."""

from pathlib import Path
from typing import Any, cast

from strata.coordinator.api import api, openapi_json
from strata.coordinator.auth import Tokens


class _Nothing:
    hub: Any = type("hub", (), {"settled": None})


if __name__ == "__main__":
    app = api(cast(Any, _Nothing()), Tokens(), lambda: True)
    (Path(__file__).parents[3] / "docs" / "openapi.json").write_text(openapi_json(app))
