"""A loader or a mix inside of a DataLoader's workers, forked or spawned.

Worker w of W makes batches w, w + W, … from where the loader stands, which is the order in which a DataLoader asks its
workers: so they come out as the loader itself gives them.

Workers are copies that were made when the DataLoader began, and may outlive it (`persistent_workers`). What they cannot
know from then is in memory that all share: where an iteration begins, and, the other way, that there was one which
nobody counts. An iteration that `over` began has a number of its own. A worker that begins again under the number of
the one before is iterated without `over`.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from strata.data.loader import Loader

T = TypeVar("T")

_NUMBER, _UNCOUNTED, _WHERE = range(3)


class Shared:
    """What a loader and its copies in workers tell each other. Goes to workers only, when they are started. Where it
    stands is a few numbers, always as many."""

    def __init__(self, *where: int) -> None:
        self._told = multiprocessing.RawArray("q", _WHERE + len(where))
        self._number = 0
        """Of the last iteration that was begun, as far as this process knows."""
        self._is_beginning = False
        self._is_first = True
        self.tell(*where)

    def tell(self, *where: int) -> None:
        """Where the next iteration begins."""
        self._told[_WHERE:] = where

    def begin(self, start: Callable[[], T]) -> T:
        """Start workers, or let them begin again, in the name of `over`."""
        self._told[_NUMBER] = self._number = self._number + 1
        self._is_beginning = True
        try:
            return start()
        finally:
            self._is_beginning = False

    def begun(self, snapshot: tuple[int, ...]) -> tuple[int, ...]:
        """In a worker: from where on. A worker's first iteration is the one that it was copied for,
        whatever was told since."""
        if self._is_first:
            is_counted, where = self._is_beginning, snapshot
        else:
            is_counted, where = self._told[_NUMBER] != self._number, tuple(self._told[_WHERE:])
            self._number = self._told[_NUMBER]
        self._is_first = False
        if not is_counted:
            self._told[_UNCOUNTED] = 1
        return where

    @property
    def is_counted(self) -> bool:
        return not self._told[_UNCOUNTED]

    def counted(self) -> None:
        self._told[_UNCOUNTED] = 0


class InWorkers(Protocol):
    """What goes to workers."""

    def batches_here(self) -> Iterator[Any]: ...

    def batches_of_worker(self, worker: int, workers: int) -> Iterator[Any]: ...


class EndlessDataset(IterableDataset[Any]):
    """For `DataLoader(mix.dataset(), batch_size=None, num_workers=…)`. See the module."""

    def __init__(self, source: InWorkers) -> None:
        super().__init__()
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: where it begins is settled now, and not when the first batch is asked for.
        info = get_worker_info()
        if info is None:
            return self._source.batches_here()
        return self._source.batches_of_worker(info.id, info.num_workers)


class WorkerDataset(EndlessDataset):
    """For `DataLoader(loader.dataset(), batch_size=None, num_workers=…)`: one epoch."""

    def __init__(self, loader: "Loader") -> None:
        super().__init__(loader)
        self._loader = loader

    def __len__(self) -> int:
        """The batches of an epoch."""
        return len(self._loader)
