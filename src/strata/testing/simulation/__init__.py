"""A deterministic simulation of a whole cluster: see `Simulation`."""

from strata.testing.simulation.plan import Chaos, Fault, Plan
from strata.testing.simulation.run import Failure, Result, Simulation, simulate
from strata.testing.simulation.violation import Violation

__all__ = ["Chaos", "Failure", "Fault", "Plan", "Result", "Simulation", "Violation", "simulate"]
