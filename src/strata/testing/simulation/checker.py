"""The promises a simulated cluster is held to, checked as it goes.

The checks have a model of their own, made of what workers really did and of records once they are durable; they never
ask the machine whether the machine is right. Cheap rules are checked with each record, the rest every so often.
"""

from collections import Counter
from collections.abc import Callable

from strata.core.events import Event
from strata.core.machine import Machine
from strata.core.records import JobRecord, Record, WorkerJoined, WorkerLost
from strata.testing.simulation.barrier_checks import BarrierChecks
from strata.testing.simulation.commit_checks import CommitChecks
from strata.testing.simulation.lease_checks import LeaseChecks
from strata.testing.simulation.read_checks import ReadChecks
from strata.testing.simulation.shard_checks import ShardChecks
from strata.testing.simulation.store import Store
from strata.testing.simulation.violation import Violation


class Checker:
    """Hears of every record when it is decided, and when it is durable, and raises the first Violation.

    `standby` is the machine that is fed the durable records: its state is what the outside may know.
    """

    def __init__(
        self,
        standby: Machine,
        store: Store,
        batches: int,
        clock: Callable[[], float],
        note: Callable[[str, Record], None],
    ) -> None:
        self.standby, self._clock, self._note = standby, clock, note
        self.shards = ShardChecks()
        self.leases = LeaseChecks(standby, standby.policy, clock)
        self.barriers = BarrierChecks(standby, clock)
        self.commits = CommitChecks(standby, store, batches)
        self.reads = ReadChecks(standby)
        self.counts: Counter[str] = Counter()
        self.by_job: Counter[tuple[str, str]] = Counter()
        self.last: dict[tuple[str, str], float] = {}
        self._generations: dict[str, int] = {}
        self._term = 0

    def decided(self, machine: Machine, event: Event, records: list[Record]) -> None:
        """The live machine decided this; it is not durable yet."""
        self.leases.decided(records)
        self.shards.decided(machine, event, records)
        self.barriers.decided(machine, records)

    def before(self, record: Record) -> None:
        """The record is durable, and not yet applied."""
        self.reads.before(record)

    def after(self, record: Record) -> None:
        """The record is durable and applied."""
        kind = type(record)
        self.counts[kind.__name__] += 1
        if not isinstance(record, JobRecord):
            self._check_term(record)
            return
        self._note(record.job, record)
        self.by_job[(record.job, kind.__name__)] += 1
        self.last[(record.job, kind.__name__)] = self._clock()
        self._check_generation(record)
        for group in (self.barriers.checks, self.commits.checks, self.reads.checks):
            check = group.get(kind)
            if check is not None:
                check(record)

    def _check_term(self, record: Record) -> None:
        self._note("coordinator", record)
        if self.standby.state.term <= self._term:
            raise Violation("terms", f"the coordinator went from term {self._term} to {self.standby.state.term}")
        self._term = self.standby.state.term

    def _check_generation(self, record: JobRecord) -> None:
        generation, known = self.standby.state.jobs[record.job].world.generation, self._generations.get(record.job, 0)
        if generation < known or (generation == known and isinstance(record, WorkerJoined | WorkerLost)):
            raise Violation("generations", f"{record.job} went from generation {known} to {generation}")
        self._generations[record.job] = generation

    def of(self, job: str, record: str) -> int:
        """How many durable records of this kind the job has."""
        return self.by_job[(job, record)]
