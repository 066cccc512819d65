"""Batches of a dataset for a training loop: the same global batches at every world size, and exact resume.

    for batch in loader: …          {"image": array, "label": array}; goes on where it stopped, epoch after epoch
    loader.state_dict()             a few numbers, counted by batches that were given out: store it with the checkpoint

Runs of batches are put together ahead, by threads. What was put together and not given out counts for nothing: it is
put together again after a resume.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from strata.core.orders import WINDOW_SHARDS, ShardLayout, Tail
from strata.data.cache import CACHE_BYTES, Cache
from strata.data.cursor import Cursor
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.making import Making
from strata.data.output import Finish, Output
from strata.data.position import Position, beginning, order_at
from strata.data.runs import Batch, Share

if TYPE_CHECKING:
    from strata.data.workers import Shared, WorkerDataset

T = TypeVar("T")

MEMORY_BYTES = 1 << 30
SHARD_SAMPLES = 10_000
"""Of a shard at most, by default."""


class Loader(Cursor):
    """See the module. Safe to iterate by one thread at a time.

    dataset: an index of it (`index_dataset`, `load_index`), or where it is, and in which `format`: then it is indexed
        first, which takes a look into each file.
    global_batch_size: samples of a batch over all ranks; this one gets its share, in order.
    columns: those that are wanted; all if None.
    map: applied to each batch, before it is turned into what `output` says, by the threads that prepare batches.
    memory_bytes: for decoded blocks, of all workers of a DataLoader together. What is put together comes on top: three
        runs of about 8 MiB, or of one batch.
    cache, cache_bytes: a folder where what is read from a remote storage is kept, for all processes of the machine, and
        how much of it. What was not used for longest goes first.
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
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        format: str = "",
    ) -> None:
        index = dataset if isinstance(dataset, DatasetIndex) else index_dataset(dataset, format)
        self.index = index if cache is None else index.cached(Cache(cache, cache_bytes))
        layout = ShardLayout(self.index.rows, shard_size_for(self.index) if shard_size is None else shard_size)
        position = beginning(
            self.index.fingerprint,
            layout,
            global_batch_size,
            seed=seed,
            shuffle=shuffle,
            streams=streams,
            window_shards=window_shards,
            tail=tail,
            epoch=epoch,
        )
        self._share = Share.of(rank, world_size)
        self.index.check_columns(columns)
        self._making = Making(
            self.index,
            self._share,
            columns,
            Finish(output, map),
            memory_bytes=memory_bytes,
            threads=threads or min(4, os.cpu_count() or 1),
        )
        self._shared: Shared | None = None
        super().__init__(position)

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def blocks_read(self) -> int:
        """More than there are if `memory_bytes` is too small for the order, or after more than one epoch."""
        return self._making.held().read_count

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self._order.batches

    @property
    def global_batch_size(self) -> int:
        return self._position.global_batch_size

    @property
    def share(self) -> Share:
        """Of which rank its batches are."""
        return self._share

    def samples(self, batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of this rank's samples in a batch of the epoch that it is in."""
        return self._order.places(batch, *self._share)

    def close(self) -> None:
        self._making.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch that it is in. When that is at its end, the next is. What `map` raises, or an error in
        the data, ends it: the batch that could not be made is the next one still."""
        moves, epoch = self._moves, self.epoch
        for number, batch in self._making.batches(self._order, range(self.batch, len(self))):
            self._give(epoch, number + 1)
            yield batch
            if self._moves != moves:
                return  # it was sent elsewhere meanwhile
        self.set_epoch(epoch + 1)

    # -- in the workers of a DataLoader ------------------------------------------------------------------------------

    def dataset(self) -> "WorkerDataset":
        """For `DataLoader(loader.dataset(), batch_size=None, num_workers=…)`, which is iterated with `over`. Spawned
        workers need a `map` that can be pickled."""
        from strata.data.workers import Shared, WorkerDataset

        if self._shared is None:
            self._shared = Shared(self.epoch, self.batch)
        return WorkerDataset(self)

    def state_dict(self) -> dict[str, Any]:
        self._is_counted = self._is_counted and (self._shared is None or self._shared.is_counted)
        return super().state_dict()

    def batches_here(self) -> Iterator[Any]:
        """The rest of the epoch, for somebody who gives it out."""
        self._asked()
        return self._from(self._position, 0, 1)

    def batches_of_worker(self, worker: int, workers: int) -> Iterator[Any]:
        """In a worker's copy of this loader: its batches of the iteration that begins now."""
        assert self._shared is not None, "only a dataset goes to workers"
        where = self._position.at(*self._shared.begun((self.epoch, self.batch)))
        return self._from(where, worker, workers)

    def _from(self, where: Position, worker: int, workers: int) -> Iterator[Any]:
        order = order_at(where)
        numbers = range(min(where.batch + worker, order.batches), order.batches, workers)
        return (batch for _, batch in self._making.batches(order, numbers, workers))

    def _begin(self, data_loader: Iterable[T]) -> Iterator[T]:
        return iter(data_loader) if self._shared is None else self._shared.begin(partial(iter, data_loader))

    def _ended(self) -> None:
        self._tell()

    def _give(self, epoch: int, given: int) -> None:
        super()._give(epoch, given)
        if not self._is_over:  # workers that begin late begin where `over` did
            self._tell()
        if self._shared is not None:
            self._shared.counted()

    def _go_to(self, position: Position) -> None:
        super()._go_to(position)
        self._tell()
        if self._shared is not None:
            self._shared.counted()

    def _tell(self) -> None:
        if self._shared is not None:
            self._shared.tell(self.epoch, self.batch)


def shard_size_for(index: DatasetIndex) -> int:
    """About a block, and no more than many samples: those of a shard are read at about the same time."""
    return max(1, min(SHARD_SAMPLES, index.rows // max(1, index.blocks)))
