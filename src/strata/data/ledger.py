"""The coordinator's ledger of a dataset: what is known to be consumed, and what that proves of an epoch.

The coordinator counts a place of the epoch's order once, when a worker that may reports it, and an order has each
sample at one place. So an epoch whose places are all counted had every sample reported, and each counted once. Some of
those may have been damaged, and left out of their batches: they are counted apart, and nobody was given them. The
ledger cannot say what a worker did with a sample, nor of an epoch that is over which places nobody reported. What the
readers of an epoch said that they drop, the tail that fills no batch, is no gap: it is told, and not missing.
"""

from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from strata.core.ids import check_id, check_int
from strata.core.ranges import RangeSet
from strata.core.state import PROOFS_KEPT
from strata.data.position import dropped
from strata.data.registered import RegisteredDataset, registered
from strata.errors import NotFound, Refused
from strata.texts import spans

TRIES = 5

Gaps: TypeAlias = list[tuple[int, int]]


class Asks(Protocol):
    """Calls the coordinator: `strata.wire.asking.Asker`, or `strata.session.Session`."""

    async def call(self, method: str, **fields: Any) -> Any: ...


class Holder(NamedTuple):
    """A rank, the worker there (empty: none has come), how many shards are its own, and how many it must give up."""

    rank: int
    worker: str
    shards: int
    giving_up: int


class Finished(NamedTuple):
    """An epoch that is over: how much of it was reported as consumed when the next began, how much its readers were to
    drop, and how much of what was consumed was damaged and left out."""

    epoch: int
    total: int
    consumed: int
    reissued: int
    to_drop: int = 0
    left_out: int = 0

    @property
    def dropped(self) -> int:
        return min(self.to_drop, self.total - self.consumed)

    @property
    def missing(self) -> int:
        return self.total - self.consumed - self.dropped


class Ledger(NamedTuple):
    """What the coordinator knew of a dataset when it was asked. `finished` is of the version in force. `kept_from`: of
    epochs before that one it has nothing any more."""

    dataset: RegisteredDataset
    generation: int
    consumed: RangeSet
    reissued: int
    finished: list[Finished]
    holders: list[Holder]
    kept_from: int = 0
    to_drop: int = 0
    """Of the epoch that runs."""

    @property
    def unheard(self) -> list[int]:
        """Epochs that are over, and of which nothing was reported: a checkpoint from behind them was gone on from."""
        heard = {each.epoch for each in self.finished}
        return [epoch for epoch in range(self.kept_from, self.dataset.epoch) if epoch not in heard]

    @property
    def short(self) -> list[Finished]:
        """Those that are over, and of which not all was reported, or not all given out."""
        return [each for each in self.finished if each.missing or each.left_out]

    @property
    def unproven(self) -> list[int]:
        return sorted([*self.unheard, *(each.epoch for each in self.short)])


class Verdict(NamedTuple):
    """Of one epoch: `missing` are the places nobody reported and that were not `dropped`, as its tail; None where only
    their number is known. Of the `consumed` ones, `left_out` samples were damaged, and nobody was given them."""

    epoch: int
    state: Literal["running", "over"]
    total: int
    consumed: int
    reissued: int
    missing: Gaps | None
    dropped: int = 0
    left_out: int = 0

    @property
    def given_out(self) -> int:
        return self.consumed - self.left_out

    @property
    def missing_samples(self) -> int:
        return self.total - self.dropped - self.consumed

    @property
    def whole(self) -> bool:
        return not self.missing_samples and not self.left_out


async def read_ledger(asker: Asks, dataset_id: str) -> Ledger:
    """The ledger, in as many answers as it takes: all about the same epoch, which only gains meanwhile."""
    check_id(dataset_id, "dataset_id")
    for _ in range(TRIES):
        first = answer = await asker.call("GetLedger", dataset_id=dataset_id)
        edges = list(answer.consumed.edges)
        while answer.HasField("next_place") and _same(first, answer):
            answer = await asker.call("GetLedger", dataset_id=dataset_id, from_place=answer.next_place)
            edges.extend(answer.consumed.edges)
        if _same(first, answer):
            return _ledger(first, edges)
    raise Refused(f"dataset {dataset_id!r} goes from one epoch to the next faster than it can be read: try again")


def _same(first: Any, answer: Any) -> bool:
    return (first.dataset.version, first.dataset.epoch, first.point) == (
        answer.dataset.version,
        answer.dataset.epoch,
        answer.point,
    )


def _ledger(answer: Any, edges: list[int]) -> Ledger:
    consumed = RangeSet()
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        consumed.add(start, end)
    finished = [
        Finished(
            each.epoch,
            each.total_samples,
            each.consumed_samples,
            each.reissued_samples,
            dropped(each.reading, each.total_samples),
            each.left_out_samples,
        )
        for each in answer.finished
        if each.version == answer.dataset.version
    ]
    is_full = len(answer.finished) >= PROOFS_KEPT
    kept_from = 0 if not is_full else finished[0].epoch if finished else answer.dataset.epoch
    return Ledger(
        registered(answer.dataset),
        answer.generation,
        consumed,
        answer.reissued_samples,
        finished,
        [Holder(each.rank, each.worker_id, each.shards, each.giving_up) for each in answer.holders],
        kept_from,
        dropped(answer.reading, answer.dataset.total_samples),
    )


def judge(ledger: Ledger, epoch: int | None = None) -> Verdict:
    """What the ledger proves of an epoch; None: the last that is over, or else the one that runs."""
    dataset = ledger.dataset
    if epoch is None:
        epoch = ledger.finished[-1].epoch if ledger.finished else dataset.epoch
    check_int(epoch, "epoch")
    if epoch > dataset.epoch:
        raise NotFound(f"epoch {epoch} of dataset {dataset.dataset_id!r} has not begun: it is in epoch {dataset.epoch}")
    if epoch == dataset.epoch:
        to_drop = min(ledger.to_drop, dataset.total_samples - ledger.consumed.count)
        gaps = ledger.consumed.missing(0, dataset.total_samples - to_drop)
        counts = dataset.total_samples, ledger.consumed.count, ledger.reissued
        return Verdict(epoch, "running", *counts, gaps, to_drop, dataset.left_out_samples)
    for each in ledger.finished:
        if each.epoch == epoch:
            counts = each.total, each.consumed, each.reissued
            return Verdict(epoch, "over", *counts, None if each.missing else [], each.dropped, each.left_out)
    kept = [each.epoch for each in ledger.finished]
    has = f"it has epochs {', '.join(spans(kept))}, and {dataset.epoch}" if kept else f"it has epoch {dataset.epoch}"
    raise NotFound(
        f"the ledger has nothing of epoch {epoch} of dataset {dataset.dataset_id!r}, version {dataset.version}: {has}. "
        f"It keeps the last {PROOFS_KEPT} that are over"
    )
