"""What is counted while the coordinator runs: requests, barriers, checkpoints. For people and for Prometheus alone.

Hot paths only add to plain numbers; whoever looks pays for making sense of them.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from strata.coordinator.hub import Verdict
from strata.coordinator.replay import Entry
from strata.core.effects import ReleaseBarrier
from strata.core.records import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointCommitted,
    PartAcknowledged,
    Record,
    WorkerLost,
)
from strata.rpc import Interceptor, Status

LATENCY_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
WAIT_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
SAVE_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0)
VERDICTS_KEPT = 512
SAVES_KEPT = 10
RATE_SECONDS = 10.0
_COUNTED = (CheckpointBegun, PartAcknowledged, CheckpointCommitted, CheckpointAbandoned, WorkerLost)


class Histogram:
    """Counts by upper bound, the sum, and the number of what was observed."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class MethodStats:
    """The calls of one method: how many ended how (by the number of the status), and how long they took."""

    __slots__ = ("codes", "latency")

    def __init__(self) -> None:
        self.codes = [0] * len(Status)
        self.latency = Histogram(LATENCY_BUCKETS)


class RequestStats(Interceptor):
    """Every call that ended."""

    def __init__(self) -> None:
        self.methods: dict[str, MethodStats] = {}
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def ended(self, path: str, status: Status, seconds: float) -> None:
        method = self.methods.get(path)
        if method is None:
            method = self.methods[path] = MethodStats()
        method.codes[status] += 1
        latency = method.latency
        latency.counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        latency.total += seconds

    @property
    def count(self) -> int:
        """All of them."""
        return sum(sum(method.codes) for method in self.methods.values())

    def per_second(self) -> float:
        """Over the last ten seconds, or since whoever asked last if that is longer ago."""
        now, count = time.monotonic(), self.count
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now - RATE_SECONDS:
            marks.popleft()
        if now - marks[-1][0] >= 0.5:
            marks.append((now, count))
        since, before = marks[0]
        return (count - before) / (now - since) if now > since else 0.0


@dataclass(frozen=True, slots=True)
class PastBarrier:
    """A round that is over. `release_seconds` is from the last arrival until everybody was told."""

    job_id: str
    barrier_id: str
    round: int
    released: bool
    reason: str
    last: str
    missing: tuple[str, ...]
    waited_seconds: float
    release_seconds: float
    unix_seconds: float


class BarrierStats:
    """The latest rounds, and all of them in numbers."""

    def __init__(self) -> None:
        self.past: deque[PastBarrier] = deque(maxlen=VERDICTS_KEPT)
        self.waits = Histogram(WAIT_BUCKETS)
        self.releases = Histogram(LATENCY_BUCKETS)
        self.broken = 0

    def hear(self, verdict: Verdict, release_seconds: float) -> None:
        released = isinstance(verdict, ReleaseBarrier)
        self.waits.observe(verdict.waited_seconds)
        if released:
            self.releases.observe(release_seconds)
        else:
            self.broken += 1
        self.past.append(
            PastBarrier(
                verdict.job,
                verdict.barrier,
                verdict.round,
                released,
                verdict.reason,
                verdict.last if isinstance(verdict, ReleaseBarrier) else "",
                () if isinstance(verdict, ReleaseBarrier) else verdict.missing,
                verdict.waited_seconds,
                release_seconds,
                time.time(),
            )
        )

    def release_ms(self, quantile: float) -> float:
        """Of the latest releases, in milliseconds; 0 where there were none."""
        values = sorted(past.release_seconds for past in self.past if past.released)
        return 1000 * values[min(len(values) - 1, int(len(values) * quantile))] if values else 0.0


@dataclass(slots=True)
class Save:
    """One attempt as it went."""

    job_id: str
    attempt: int
    step: int
    began: float
    ended: float | None = None
    part_bytes: int = 0

    @property
    def seconds(self) -> float | None:
        return None if self.ended is None else max(self.ended - self.began, 1e-3)


@dataclass
class JournalStats:
    """Checkpoints and losses, as the journal tells of them; a restart begins with what it still holds."""

    saves: dict[tuple[str, int], Save] = field(default_factory=dict)
    committed: deque[Save] = field(default_factory=lambda: deque(maxlen=SAVES_KEPT))
    save_seconds: Histogram = field(default_factory=lambda: Histogram(SAVE_BUCKETS))
    committed_bytes: int = 0
    committed_count: int = 0
    abandoned_count: int = 0
    lost: dict[str, int] = field(default_factory=dict)

    def hear(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if isinstance(entry.record, _COUNTED):
                self._count(entry.record, entry.unix_seconds)

    def _count(self, record: Record, unix_seconds: float) -> None:
        if isinstance(record, CheckpointBegun):
            self.saves[record.job, record.attempt] = Save(record.job, record.attempt, record.step, unix_seconds)
        elif isinstance(record, PartAcknowledged):
            save = self.saves.get((record.job, record.attempt))
            if save is not None:
                save.part_bytes += record.part_bytes
        elif isinstance(record, CheckpointCommitted):
            self._committed(record, unix_seconds)
        elif isinstance(record, CheckpointAbandoned):
            self.abandoned_count += 1
            self.saves.pop((record.job, record.attempt), None)
        elif isinstance(record, WorkerLost):
            self.lost[record.cause] = self.lost.get(record.cause, 0) + 1

    def _committed(self, record: CheckpointCommitted, unix_seconds: float) -> None:
        save = self.saves.pop((record.job, record.attempt), None)
        self.committed_count += 1
        if save is not None:
            save.ended = unix_seconds
            self.committed.append(save)
            self.committed_bytes += save.part_bytes
            self.save_seconds.observe(save.seconds or 0.0)

    def mb_per_s(self) -> float:
        """Of the latest checkpoints, from their begin to their commit."""
        seconds = sum(save.seconds or 0.0 for save in self.committed)
        return sum(save.part_bytes for save in self.committed) / 1e6 / seconds if seconds else 0.0
