"""What Strata ships for testing: the simulation of a whole cluster from a seed."""

from strata.testing.simulation import Plan, Result, Simulation, simulate

__all__ = ["Plan", "Result", "Simulation", "simulate"]
