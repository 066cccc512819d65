"""Numbers as callers give them, checked: what numpy counts and measures with is as good as Python's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from strata.core.ids import check_int, check_name
from strata.errors import InvalidInput


def whole_number(value: Any, what: str) -> int:
    """A plain integer: also of what numpy counts with."""
    return check_int(int(value) if isinstance(value, np.integer) else value, what)


def checked_metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    found = {}
    if not isinstance(metrics, Mapping | None):
        raise InvalidInput(f"metrics must be a dict of numbers, not {type(metrics).__name__}")
    for name, value in (metrics or {}).items():
        check_name(name, "the name of a metric")
        try:
            found[name] = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"the metric {name!r} must be a number, not {type(value).__name__}") from error
    return found
