"""What a local write goes through: the job that a thread does, the staged file, and the streaming writer over it."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from strata.errors import InvalidInput
from strata.storage import filelock
from strata.storage.backend import Data, Progress, byte_view, checked_progress
from strata.storage.direct import FileSink
from strata.storage.refusals import has_a_hole, writer_ended

if TYPE_CHECKING:
    from strata.storage.local import LocalStorage


class Stopped(Exception):
    """The caller does not want it any more."""


class Pulse:
    """Beats with every step that any job of a storage makes."""

    def __init__(self) -> None:
        self.beats = 0


class Job:
    """What a call and its thread know of each other: bytes done, and whether anybody still wants it."""

    def __init__(self, progress: Progress | None = None, pulse: Pulse | None = None) -> None:
        self.started = False
        self.stopped = False
        self._steps = 0
        self._done = 0
        self._pulse = pulse or Pulse()
        self._progress = checked_progress(progress)
        self._lock = threading.Lock()

    def tick(self, count: int) -> None:
        """One more step of the work; raises if it is not wanted any more."""
        if self.stopped:
            raise Stopped
        with self._lock:
            self.step()
            self._done += count
            if self._progress and count:
                self._progress(self._done)

    def step(self) -> None:
        """As `tick`, where it is too late to stop."""
        self._steps += 1
        self._pulse.beats += 1

    @property
    def life(self) -> int:
        """Changes as long as something goes on: with this job, or while it waits for a thread, with any other."""
        return self._steps if self.started else self._pulse.beats


class Staged:
    """A file that is not an object yet, locked by this process."""

    def __init__(self, path: str, fd: int, *, direct: bool) -> None:
        self.path = path
        self.fd = filelock.keep(fd)
        self.in_use = threading.Lock()
        self._process = os.getpid()
        try:
            self.sink = FileSink(fd, direct=direct)
        except BaseException:
            self._discard()
            raise

    def finish(self, job: Job) -> None:
        """Whole and durable, and dated to the nanosecond: the date is part of its version."""
        self.sink.flush(job.tick)
        now = time.time_ns()
        os.utime(self.fd if os.utime in os.supports_fd else self.path, ns=(now, now))
        self.sink.finish(job.tick)

    def close(self) -> None:
        """Away with the staged name. Not under a thread that still writes: the number of its file may be given anew."""
        with self.in_use:
            self.sink.release()
            if self._process == os.getpid():  # in a forked child it is the parent's
                self._discard()

    def _discard(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        filelock.close(self.fd)


class LocalWriter:
    """A streaming writer: the staged file stays open between the pieces."""

    def __init__(self, storage: "LocalStorage", path: str, progress: Progress | None) -> None:
        self._storage = storage
        self._path = path
        self._progress = checked_progress(progress)
        self._staged: Staged | None = None
        self._process = os.getpid()
        self._turn = asyncio.Lock()
        self._ended = False
        self._failed = False
        self._written = 0

    async def write(self, data: Data) -> None:
        view = byte_view(data)
        async with self._turn:
            await self._step(lambda job: self._write(view, job))
            self._written += view.nbytes
            if self._progress:
                self._progress(self._written)

    async def commit(self) -> None:
        async with self._turn:
            if not self._ended:
                await self._step(self._commit)
                await self.abort()

    async def abort(self) -> None:
        """In a thread: if another is still at it, it is waited for there, and not here."""
        staged, self._staged, self._ended = self._staged, None, True
        if staged is None:
            return
        if self._storage.closed:
            staged.close()
        else:
            await self._storage.run(self._path, "discard", lambda _: staged.close())

    async def _step(self, work: Callable[[Job], None]) -> None:
        if self._ended:
            raise writer_ended(self._storage.url, self._path)
        if self._process != os.getpid():
            raise InvalidInput(
                f"the writer of {self._path!r} in {self._storage.url} belongs to the parent process: open one here"
            )
        if self._failed:
            raise has_a_hole(self._storage.url, self._path)
        try:
            await self._storage.run(self._path, "write", work)
        except BaseException:
            self._failed = True
            raise

    def _open(self) -> Staged:
        if self._staged is None:
            staged = self._storage.open_staged(direct=True)
            if self._ended:  # given up while the filesystem hung
                staged.close()
                raise Stopped
            self._staged = staged
        return self._staged

    def _write(self, view: memoryview, job: Job) -> None:
        staged = self._open()
        with staged.in_use:
            staged.sink.write(view, job.tick)

    def _commit(self, job: Job) -> None:
        target = self._storage.target(self._path)
        staged = self._open()
        with staged.in_use:
            staged.finish(job)
            self._storage.publish(staged, target, self._storage.replace, job)
