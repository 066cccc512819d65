"""Runs of batches: many are put together at once, since what numpy does for one it does for fifty in little more time.

order ──▶ samples of a run ──▶ blocks and rows ──▶ one array for each column ──▶ batches, which are views of it

Rows are gathered block by block, each block's in one go, and each column is then put in order as a whole.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.core.ids import check_int
from strata.data.columns import Kept, joined
from strata.data.held import Held
from strata.data.skipping import Skips
from strata.data.stretches import Missing, Places, Stretch, remains, with_values
from strata.errors import InvalidInput

Batch: TypeAlias = dict[str, NDArray[Any]]
Samples: TypeAlias = NDArray[np.int64]

RUN_BYTES = 8 << 20
MOST_BATCHES = 256
PLAN_SAMPLES = 4096
"""Whose places are computed together, however few of them a run has: a few take as long as all of these."""


class Order(Protocol):
    """Samples in batches: `strata.core.orders.Order`, or `strata.data.ownbatches.Stretches`."""

    @property
    def global_batch_size(self) -> int: ...

    @property
    def batches(self) -> int: ...

    def batch_size(self, batch: int) -> int: ...

    def run(self, first: int, last: int, position: int, world: int, step: int = 1) -> Samples: ...


class Locating(Protocol):
    def locate(self, samples: Samples) -> tuple[Samples, Samples]:
        """The block of each sample, and its row there."""


class Run(NamedTuple):
    """Batches one after the other, each from one edge to the next."""

    edges: list[int]
    columns: dict[str, NDArray[Any]]
    missing: Missing

    def batches(self) -> Iterator[Batch]:
        columns = list(self.columns.items())
        for start, end in itertools.pairwise(self.edges):
            yield {name: values[start:end] for name, values in columns}


class Share(NamedTuple):
    """The places that one of several takes from each batch."""

    position: int
    world: int

    @classmethod
    def of(cls, rank: int, world_size: int) -> "Share":
        check_int(world_size, "world_size", least=1)
        if check_int(rank, "rank") >= world_size:
            raise InvalidInput(f"there is no rank {rank} among {world_size}: ranks are counted from 0")
        return cls(rank, world_size)


def edges_of(order: Order, share: Share, batches: range) -> list[int]:
    """Where the batches of a run begin and end among its samples."""
    edges = [0]
    for batch in batches:
        size = order.batch_size(batch)
        mine = (share.position + 1) * size // share.world - share.position * size // share.world
        edges.append(edges[-1] + mine)
    return edges


class Runs:
    """Puts runs together, from blocks that are held."""

    def __init__(self, order: Order, share: Share, index: Locating, held: Held, skips: Skips | None = None) -> None:
        self._order, self._share, self._index, self._held = order, share, index, held
        self._skips = skips
        self._planned = _Plan(range(0), [0], np.empty(0, np.int64))
        self._planning = threading.Lock()

    def begin(self, batches: range) -> Callable[[], Run]:
        """Reading of what these need begins now; what is given puts them together, and waits for that."""
        edges, samples = self._plan(batches)
        blocks, rows = self._index.locate(samples)
        places = _by_block(blocks)
        blocks, rows = blocks[places], rows[places]
        bounds = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)] if len(blocks) else []
        cuts = [(int(blocks[start]), start, end) for start, end in itertools.pairwise(bounds)]
        wanted = self._held.want([block for block, _, _ in cuts])

        def put_together() -> Run:
            try:
                return self._put_together(
                    edges,
                    [Stretch(block, wanted[block].result(), rows[start:end], start, end) for block, start, end in cuts],
                    places,
                )
            finally:
                self._held.done(wanted)

        return put_together

    def _put_together(self, edges: list[int], stretches: list[Stretch], places: Places) -> Run:
        left = remains(edges, stretches, with_values(stretches, self._skips), places)
        return Run(left.edges, _gathered(left.stretches, left.places), left.missing)

    def _plan(self, batches: range) -> tuple[list[int], Samples]:
        """Where the batches of a run begin and end among its samples, and the samples."""
        size = max(1, self._order.global_batch_size // self._share.world)
        if not batches or len(batches) * size >= PLAN_SAMPLES:  # enough by itself, and two threads can compute two
            return self._planned_for(batches).of(batches)
        with self._planning:
            if not self._planned.has(batches):
                # The very first run is waited for.
                count = max(len(batches), PLAN_SAMPLES // size if self._planned.batches else 0)
                stop = min(batches.start + count * batches.step, self._order.batches)
                self._planned = self._planned_for(range(batches.start, stop, batches.step))
            return self._planned.of(batches)

    def _planned_for(self, batches: range) -> "_Plan":
        # Not to `stop`, which of a part of a stepped range may lie behind the epoch.
        first, last = (batches[0], batches[-1] + 1) if batches else (0, 0)
        samples = self._order.run(first, last, *self._share, step=batches.step)
        return _Plan(batches, edges_of(self._order, self._share, batches), samples)


class _Plan(NamedTuple):
    """The samples of these batches, each from one edge to the next."""

    batches: range
    edges: list[int]
    samples: Samples

    def has(self, batches: range) -> bool:
        same = batches.step == self.batches.step
        return same and batches[0] in self.batches and batches[-1] in self.batches

    def of(self, batches: range) -> tuple[list[int], Samples]:
        at = self.batches.index(batches[0]) if batches else 0
        edges = self.edges[at : at + len(batches) + 1]
        return [edge - edges[0] for edge in edges], self.samples[edges[0] : edges[-1]]


def _by_block(blocks: Samples) -> Places:
    """The places of samples, sorted by their blocks: numbers of 16 bits are sorted in a tenth of the time."""
    if not len(blocks):
        return np.empty(0, np.intp)
    lowest = blocks.min()
    is_short = blocks.max() - lowest <= np.iinfo(np.uint16).max
    return np.argsort((blocks - lowest).astype(np.uint16) if is_short else blocks, kind="stable")


def _gathered(stretches: list[Stretch], places: Places) -> dict[str, NDArray[Any]]:
    if not stretches:
        return {}
    order = np.empty_like(places)
    order[places] = np.arange(len(places))
    return {name: _gathered_column(name, stretches, order) for name in stretches[0].decoded}


def _gathered_column(name: str, stretches: list[Stretch], order: Places) -> Any:
    columns = [each.decoded[name] for each in stretches]
    kept = [column for column in columns if isinstance(column, Kept)]
    if len(kept) == len(columns):
        return joined([column.taken(each.rows) for column, each in zip(kept, stretches, strict=True)], order)
    gathered = columns[0].room(len(order))
    for column, each in zip(columns, stretches, strict=True):
        column.take(each.rows, gathered[each.start : each.end])
    return gathered.take(order, 0) if len(stretches) > 1 else gathered
