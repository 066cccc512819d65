"""What Strata ships for testing: the simulation of a whole cluster, and the suite and the faults for storages."""

from typing import TYPE_CHECKING

from strata.testing.simulation import Plan, Result, Simulation, simulate

if TYPE_CHECKING:
    from strata.testing.faulty import Faults, FaultyStorage
    from strata.testing.storage import StorageTests
else:
    # The suite needs pytest, which a simulation does not.
    def __getattr__(name: str) -> object:
        from importlib import import_module

        homes = {
            "FaultyStorage": "strata.testing.faulty",
            "Faults": "strata.testing.faulty",
            "StorageTests": "strata.testing.storage",
        }
        if name not in homes:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)


__all__ = ["Faults", "FaultyStorage", "Plan", "Result", "Simulation", "StorageTests", "simulate"]
