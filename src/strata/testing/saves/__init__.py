"""A deterministic simulation of checkpoints of many ranks: see `SavesSimulation`."""

from strata.testing.saves.plan import SavesPlan
from strata.testing.saves.run import SavesResult, SavesSimulation, simulate_saves

__all__ = ["SavesPlan", "SavesResult", "SavesSimulation", "simulate_saves"]
