"""What an orchestrator may be told."""

from typing import Any

import pytest

from strata import OrchestratorConfig
from strata.errors import InvalidInput


@pytest.mark.parametrize(
    "wrong", [{"save_every": 0}, {"register_seconds": 0.0}, {"recover_seconds": -1.0}, {"stall_seconds": float("nan")}]
)
def test_nonsense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        OrchestratorConfig(**wrong)
