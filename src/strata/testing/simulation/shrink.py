"""Making a failing plan small: fewer faults, calmer weather, fewer workers, while it still breaks the same rule."""

from collections.abc import Callable
from time import monotonic

import msgspec

from strata.testing.simulation.plan import Chaos, Plan
from strata.testing.simulation.run import Result, Simulation

SHRINK_SECONDS = 60.0


class Shrinker:
    """Tries smaller plans until the time is up, and keeps the smallest that fails in the same way."""

    def __init__(self, failed: Result, seconds: float, report: Callable[[Plan], None] | None) -> None:
        assert failed.failure is not None
        self.best = failed
        self._rule = failed.failure.rule
        self._until = monotonic() + seconds
        self._report = report

    def attempt(self, plan: Plan) -> bool:
        """Whether this plan fails in the same way; if so it is the best one now."""
        if monotonic() > self._until:
            return False
        result = Simulation(plan).run()
        if result.failure is None or result.failure.rule != self._rule:
            return False
        self.best = result
        if self._report is not None:
            self._report(plan)
        return True

    def fewer_faults(self) -> None:
        """Leave out ever smaller runs of faults."""
        size = max(1, len(self.best.plan.faults) // 2)
        while True:
            start = 0
            while start < len(self.best.plan.faults):
                faults = self.best.plan.faults
                left = faults[:start] + faults[start + size :]
                if not self.attempt(msgspec.structs.replace(self.best.plan, faults=left)):
                    start += size
            if size == 1:
                return
            size //= 2

    def calmer(self) -> None:
        """Turn off what the network does, all of it or one thing at a time."""
        if self.attempt(msgspec.structs.replace(self.best.plan, chaos=Chaos(0.0, 0.0, 0.0))):
            return
        for name in ("lost", "doubled", "late"):
            chaos = msgspec.structs.replace(self.best.plan.chaos, **{name: 0.0})
            self.attempt(msgspec.structs.replace(self.best.plan, chaos=chaos))

    def fewer_workers(self) -> None:
        workers = 2
        while workers < self.best.plan.workers:
            if self.attempt(msgspec.structs.replace(self.best.plan, workers=workers)):
                return
            workers *= 2


def shrink(failed: Result, seconds: float = SHRINK_SECONDS, report: Callable[[Plan], None] | None = None) -> Result:
    """The smallest failing run found within so many wall seconds."""
    shrinker = Shrinker(failed, seconds, report)
    shrinker.fewer_workers()
    shrinker.fewer_faults()
    shrinker.calmer()
    shrinker.fewer_faults()
    return shrinker.best
