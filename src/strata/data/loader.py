"""Batches of a dataset for a training loop: the same global batches at every world size, and exact resume.

    for batch in loader: …          {"image": array, "label": array}; goes on where it stopped, epoch after epoch
    loader.state_dict()             a few numbers, counted by batches that were given out: store it with the checkpoint

Runs of batches are put together ahead, by threads. What was put together and not given out counts for nothing: it is
put together again after a resume.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from strata.core.ids import check_int
from strata.core.orders import WINDOW_SHARDS, ShardLayout, Tail
from strata.data.columns import columns_of
from strata.data.held import Decoded, Held
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.output import Output, as_output
from strata.data.position import Position, order_at, resumed, streams_for
from strata.data.runs import MOST_BATCHES, RUN_BYTES, Batch, Runs, Share

MEMORY_BYTES = 1 << 30
SHARD_SAMPLES = 10_000
"""Of a shard at most, by default."""
AHEAD = 2
"""Runs that are put together before they are asked for."""


class Loader:
    """See the module. Safe to iterate by one thread at a time.

    dataset: an index of it (`index_dataset`, `load_index`), or where it is, and in which `format`: then it is indexed
        first, which takes a look into each file.
    global_batch_size: samples of a batch over all ranks; this one gets its share, in order.
    columns: those that are wanted; all if None.
    map: applied to each batch, before it is turned into what `output` says, by the threads that prepare batches.
    memory_bytes: for decoded blocks. What is put together comes on top: three runs of about 8 MiB, or of one batch.
    streams, window_shards: how far samples are mixed; see docs/DATA.md. They are part of the order: a resume needs the
        same, and has them in its state.
    """

    def __init__(
        self,
        dataset: DatasetIndex | str | os.PathLike[str] | Sequence[str],
        global_batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        tail: Tail = "drop",
        shard_size: int | None = None,
        streams: int | None = None,
        window_shards: int = WINDOW_SHARDS,
        columns: Sequence[str] | None = None,
        output: Output = "numpy",
        map: Callable[[Batch], Batch] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        threads: int | None = None,
        format: str = "",
    ) -> None:
        self.index = dataset if isinstance(dataset, DatasetIndex) else index_dataset(dataset, format)
        layout = ShardLayout(self.index.rows, shard_size_for(self.index) if shard_size is None else shard_size)
        chosen = streams_for(layout, global_batch_size, window_shards, shuffle) if streams is None else streams
        self._position = Position(
            fingerprint=self.index.fingerprint,
            total_samples=layout.total_samples,
            shard_size=layout.shard_size,
            global_batch_size=global_batch_size,
            seed=seed,
            shuffle=shuffle,
            streams=chosen,
            window_shards=window_shards,
            tail=tail,
            epoch=check_int(epoch, "epoch"),
            batch=0,
        )
        self._share = Share.of(rank, world_size)
        self._columns = columns
        self.index.check_columns(columns)
        self._finish = as_output(output, map)
        self._held = Held(self._decode, memory_bytes, threads or min(4, os.cpu_count() or 1))
        self._order = order_at(self._position)
        self._moves = 0
        self._row_bytes = 0.0

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The one that the next batch is of."""
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The next one of the epoch: so many were given out."""
        return self._position.batch

    @property
    def blocks_read(self) -> int:
        """More than there are if `memory_bytes` is too small for the order, or after more than one epoch."""
        return self._held.read_count

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self._order.batches

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: what was given out is consumed, and nothing else. The same on all ranks."""
        return self._position.plain()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, at any number of ranks. What was saved with another order, or of other data, is refused."""
        self._go_to(resumed(self._position, Position.of(state)))

    def set_epoch(self, epoch: int) -> None:
        """From its first batch on."""
        self._go_to(self._position.at(check_int(epoch, "epoch"), 0))

    def _go_to(self, position: Position) -> None:
        self._position = position
        self._order = order_at(self._position)
        self._moves += 1

    def samples(self, batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of this rank's samples in a batch of the epoch that it is in."""
        return self._order.places(batch, *self._share)

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch that it is in. When that is at its end, the next is. What `map` raises, or an error in
        the data, ends it: the batch that could not be made is the next one still."""
        moves, epoch = self._moves, self.epoch
        runs = Runs(self._order, self._share, self.index, self._held)
        with ThreadPoolExecutor(AHEAD, "strata-batches") as threads:
            ahead = _Ahead(partial(self._made, runs), self._run_length, threads, range(self.batch, len(self)))
            try:
                for made in ahead:
                    for number, batch in enumerate(made.batches, made.first):
                        self._position = self._position.at(epoch, number + 1)
                        yield batch
                        if self._moves != moves:
                            return  # it was sent elsewhere meanwhile
                    if made.error is not None:
                        raise made.error
            finally:
                ahead.stop()
        self.set_epoch(epoch + 1)

    def _made(self, runs: Runs, first: int, last: int) -> "_Made":
        """By a thread of its own."""
        made: list[Any] = []
        try:
            for batch in runs.begin(first, last)().batches():
                made.append(self._finish(batch))  # noqa: PERF401  what was made before an error is given out
        except Exception as error:  # noqa: BLE001  raised where the batch is asked for
            return _Made(first, made, error)
        return _Made(first, made, None)

    def _run_length(self) -> int:
        """Batches. The first run is one batch, which comes the sooner; the others are as large as they should be."""
        if not self._row_bytes:
            return 1
        mine = max(1, self._position.global_batch_size // self._share.world)
        return max(1, min(MOST_BATCHES, int(RUN_BYTES / (mine * self._row_bytes))))

    def _decode(self, block: int) -> Decoded:
        decoded = columns_of(self.index.read(block, self._columns), self.index.place_of(block))
        size = sum(column.nbytes for column in decoded.values())
        self._row_bytes = max(1.0, size / max(1, self.index.block(block).rows))
        return decoded


def shard_size_for(index: DatasetIndex) -> int:
    """About a block, and no more than many samples: those of a shard are read at about the same time."""
    return max(1, min(SHARD_SAMPLES, index.rows // max(1, index.blocks)))


class _Made(NamedTuple):
    """Batches from the first on, and why there is not another."""

    first: int
    batches: list[Any]
    error: Exception | None


class _Ahead:
    """Runs in order, some of them begun before they are asked for."""

    def __init__(
        self, make: Callable[[int, int], _Made], length: Callable[[], int], threads: ThreadPoolExecutor, batches: range
    ) -> None:
        self._make, self._length, self._threads = make, length, threads
        self._next, self._last = batches.start, batches.stop
        self._under_way: deque[Future[_Made]] = deque()

    def __iter__(self) -> Iterator[_Made]:
        self._begin()
        while self._under_way:
            made = self._under_way.popleft().result()
            while len(self._under_way) < AHEAD and self._begin():
                pass
            yield made

    def _begin(self) -> bool:
        first, last = self._next, min(self._next + self._length(), self._last)
        if first == last:
            return False
        self._under_way.append(self._threads.submit(self._make, first, last))
        self._next = last
        return True

    def stop(self) -> None:
        """What is under way is of no use any more."""
        for made in self._under_way:
            made.cancel()
