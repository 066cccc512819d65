"""What a local write goes through: the job that a thread does, the staged file, and the streaming writer over it."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from strata.errors import StorageError
from strata.storage.backend import Data, Progress, byte_view
from strata.storage.direct import FileSink

if TYPE_CHECKING:
    from strata.storage.local import LocalStorage


class Stopped(Exception):
    """The caller does not want it any more."""


class Job:
    """What a call and its thread know of each other: bytes done, and whether anybody still wants it."""

    def __init__(self, progress: Progress | None) -> None:
        self.started = False
        self.stopped = False
        self.steps = 0
        self._done = 0
        self._progress = progress
        self._lock = threading.Lock()

    def tick(self, count: int) -> None:
        """One more step of the work; raises if it is not wanted any more."""
        if self.stopped:
            raise Stopped
        with self._lock:
            self.steps += 1
            self._done += count
            if self._progress and count:
                self._progress(self._done)


class Staged:
    """A file that is not an object yet, locked by this process."""

    def __init__(self, path: str, fd: int, sink: FileSink) -> None:
        self.path = path
        self.fd = fd
        self.sink = sink
        self.in_use = threading.Lock()

    def close(self) -> None:
        """Away with the staged name. Not under a thread that still writes: the number of its file may be given anew."""
        with self.in_use:
            self.sink.release()
            with suppress(FileNotFoundError):
                os.unlink(self.path)
            os.close(self.fd)


class LocalWriter:
    """A streaming writer: the staged file stays open between the pieces."""

    def __init__(self, storage: "LocalStorage", path: str, progress: Progress | None) -> None:
        self._storage = storage
        self._path = path
        self._progress = progress
        self._staged: Staged | None = None
        self._ended = False
        self._written = 0

    async def write(self, data: Data) -> None:
        view = byte_view(data)
        await self._step(lambda job: self._write(view, job))
        self._written += view.nbytes
        if self._progress:
            self._progress(self._written)

    async def commit(self) -> None:
        if not self._ended:
            await self._step(self._commit)
            await self.abort()

    async def abort(self) -> None:
        """In a thread: if another is still at it, it is waited for there, and not here."""
        staged, self._staged, self._ended = self._staged, None, True
        if staged is not None:
            await self._storage.run(self._path, "discard", lambda _: staged.close())

    async def _step(self, work: Callable[[Job], None]) -> None:
        if self._ended:
            raise StorageError("the writer was ended already", storage=self._storage.url, key=self._path)
        await self._storage.run(self._path, "write", work)

    def _open(self) -> Staged:
        if self._staged is None:
            self._staged = self._storage.open_staged(self._path, direct=True)
        return self._staged

    def _write(self, view: memoryview, job: Job) -> None:
        staged = self._open()
        with staged.in_use:
            staged.sink.write(view, job.tick)

    def _commit(self, job: Job) -> None:
        target = self._storage.target(self._path)
        staged = self._open()
        with staged.in_use:
            staged.sink.finish(job.tick)
            self._storage.publish(staged, target, self._storage.replace, job)
