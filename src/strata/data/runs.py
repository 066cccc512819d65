"""Runs of batches: many are put together at once, since what numpy does for one it does for fifty in little more time.

order ──▶ samples of a run ──▶ blocks and rows ──▶ one array for each column ──▶ batches, which are views of it
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.core.ids import check_int
from strata.core.orders import ElasticOrder
from strata.data.held import Decoded, Held
from strata.errors import InvalidInput

Batch: TypeAlias = dict[str, NDArray[Any]]
Samples: TypeAlias = NDArray[np.int64]

RUN_BYTES = 8 << 20
MOST_BATCHES = 256


class Locating(Protocol):
    def locate(self, samples: Samples) -> tuple[Samples, Samples]:
        """The block of each sample, and its row there."""


class Run(NamedTuple):
    """Batches one after the other, each from one edge to the next."""

    edges: list[int]
    columns: dict[str, NDArray[Any]]

    def batches(self) -> Iterator[Batch]:
        columns = list(self.columns.items())
        for start, end in zip(self.edges, self.edges[1:], strict=False):
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


def edges_of(order: ElasticOrder, share: Share, batches: range) -> list[int]:
    """Where the batches of a run begin and end among its samples."""
    edges = [0]
    for batch in batches:
        size = order.batch_size(batch)
        mine = (share.position + 1) * size // share.world - share.position * size // share.world
        edges.append(edges[-1] + mine)
    return edges


class Runs:
    """Puts runs together, from blocks that are held."""

    def __init__(self, order: ElasticOrder, share: Share, index: Locating, held: Held) -> None:
        self._order, self._share, self._index, self._held = order, share, index, held

    def begin(self, batches: range) -> Callable[[], Run]:
        """Reading of what these need begins now; what is given puts them together, and waits for that."""
        samples = self._order.run(batches[0], batches[-1] + 1, *self._share, step=batches.step)
        blocks, rows = self._index.locate(samples)
        places = np.argsort(blocks, kind="stable")
        kinds, starts = np.unique(blocks[places], return_index=True)
        stretches = [*zip(kinds.tolist(), starts.tolist(), [*starts[1:].tolist(), len(blocks)], strict=True)]
        wanted = self._held.want(kinds.tolist())

        def put_together() -> Run:
            try:
                columns = _gathered(
                    {block: wanted[block].result() for block in wanted},
                    [(block, rows[places[start:end]], places[start:end]) for block, start, end in stretches],
                    len(samples),
                )
            finally:
                self._held.done(wanted)
            return Run(edges_of(self._order, self._share, batches), columns)

        return put_together


def _gathered(
    decoded: dict[int, Decoded], stretches: list[tuple[int, Samples, Samples]], count: int
) -> dict[str, NDArray[Any]]:
    if not stretches:
        return {}
    found: dict[str, NDArray[Any]] = {}
    for name, column in decoded[stretches[0][0]].items():
        out = column.room(count)
        for block, rows, places in stretches:
            decoded[block][name].put(rows, out, places)
        found[name] = out
    return found
