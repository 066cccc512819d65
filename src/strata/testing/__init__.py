"""What Strata ships for testing: the simulation of a whole cluster, and the suite and the faults for storages.

`manager_seam` and `local_seam` are for Strata's own tests: they reach into a `CheckpointManager` and a `LocalStorage`,
and promise nothing to anybody else.

Each name is imported from its home on first use: the suite needs pytest, which a simulation does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Call",
    "Chaos",
    "Fault",
    "Faults",
    "FaultyStorage",
    "Outcome",
    "Plan",
    "Result",
    "Simulation",
    "StorageTests",
    "simulate",
]

_HOMES = {
    "Call": "faulty",
    "Chaos": "simulation",
    "Fault": "simulation",
    "Faults": "faulty",
    "FaultyStorage": "faulty",
    "Outcome": "faulty",
    "Plan": "simulation",
    "Result": "simulation",
    "Simulation": "simulation",
    "StorageTests": "storage",
    "simulate": "simulation",
}

if TYPE_CHECKING:
    from strata.testing.faulty import Call, Faults, FaultyStorage, Outcome
    from strata.testing.simulation import Chaos, Fault, Plan, Result, Simulation, simulate
    from strata.testing.storage import StorageTests


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
