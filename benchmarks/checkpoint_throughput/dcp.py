"""PyTorch's own checkpoints, saved and loaded as one process does it."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from benchmarks.checkpoint_throughput.states import State

STAGING = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)
"""What there is without a GPU. The stager is kept, so that it uses its memory again."""


class Dcp(NamedTuple):
    """One way to set it up. `sync` makes durable what a save of that name leaves undone."""

    setting: str
    writer: Callable[[str], StorageWriter]
    reader: Callable[[str], StorageReader]
    sync: Callable[[str], None]
    remove: Callable[[str], object]

    def save(self, state: State, name: str) -> None:
        save(state, storage_writer=self.writer(name))
        self.sync(name)

    def load(self, into: State, name: str) -> None:
        load(into, storage_reader=self.reader(name))


class DcpSaves:
    """Saves of one state, one at a time; what is written goes when it is settled."""

    def __init__(self, how: Dcp, state: State) -> None:
        self._how, self._state = how, state
        self._stager = DefaultStager(STAGING)
        self._number = 0
        self._running: Any = None
        self._written: list[str] = []

    def save(self) -> None:
        self._how.save(self._state, self._next())

    def save_async(self) -> None:
        """Until the state may be changed again."""
        name = self._next()
        writer = self._how.writer(name)
        self._running = async_save(self._state, storage_writer=writer, async_stager=self._stager)

    def settle(self) -> None:
        if self._running is not None:
            self._running.result()
            self._running = None
        while self._written:
            self._how.remove(self._written.pop())

    def close(self) -> None:
        self.settle()
        self._stager.close()

    def _next(self) -> str:
        self._number += 1
        self._written.append(f"dcp-{id(self)}-{self._number}")
        return self._written[-1]


def tuned(ways: Sequence[Dcp], state: State) -> Dcp:
    """The fastest of a few, each tried once after a first go that only warms up."""
    tried = []
    for number, how in enumerate(ways):
        _seconds(how, state)
        tried.append((_seconds(how, state), number))
    return ways[min(tried)[1]]


def _seconds(how: Dcp, state: State) -> float:
    began = time.perf_counter()
    how.save(state, "dcp-tried")
    taken = time.perf_counter() - began
    how.remove("dcp-tried")
    return taken
