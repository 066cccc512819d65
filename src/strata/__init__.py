"""The public names of Strata, and nothing else.

Each name is imported from its home on first use, so `import strata` stays quick and pulls in no other package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "BarrierFailed",
    "Conflict",
    "EpochCoordinator",
    "Expired",
    "Fenced",
    "InvalidInput",
    "NotFound",
    "NotRegistered",
    "Refused",
    "ShardAssignment",
    "ShardManager",
    "StaleGeneration",
    "StrataError",
    "Superseded",
]

_HOMES = {
    "BarrierFailed": "strata.errors",
    "Conflict": "strata.errors",
    "EpochCoordinator": "strata.sharding",
    "Expired": "strata.errors",
    "Fenced": "strata.errors",
    "InvalidInput": "strata.errors",
    "NotFound": "strata.errors",
    "NotRegistered": "strata.errors",
    "Refused": "strata.errors",
    "ShardAssignment": "strata.sharding",
    "ShardManager": "strata.sharding",
    "StaleGeneration": "strata.errors",
    "StrataError": "strata.errors",
    "Superseded": "strata.errors",
}

if TYPE_CHECKING:
    from strata.errors import (
        BarrierFailed,
        Conflict,
        Expired,
        Fenced,
        InvalidInput,
        NotFound,
        NotRegistered,
        Refused,
        StaleGeneration,
        StrataError,
        Superseded,
    )
    from strata.sharding import EpochCoordinator, ShardAssignment, ShardManager
else:
    # Hidden from type checkers: they would take any misspelt name for one that this function finds.
    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
