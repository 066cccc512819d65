"""A save on the private loop, from its beginning until nothing is left of it; and the end of Python, which waits."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from strata import background
from strata.checkpoint.handle import SaveHandle
from strata.errors import StrataError


class Running:
    """A save on the private loop. `over` is done when nothing of it is left: not even where it was given up."""

    def __init__(
        self, handle: SaveHandle, work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]
    ) -> None:
        self.handle = handle
        self.over: Future[None] = Future()
        self._task: asyncio.Task[None] | None = None
        self._loop = background.loop()
        _unfinished[self.over] = os.getpid()
        self.over.add_done_callback(_unfinished.pop)
        self._loop.call_soon_threadsafe(self._begin, work, failed)

    def give_up(self, why: StrataError) -> None:
        """From any thread. One whose commit may have been made is finished all the same."""
        self._loop.call_soon_threadsafe(self._give_up, why)

    def _begin(self, work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]) -> None:
        """Nothing here refers to the saver for longer than the save lasts: it refers to this, and is dropped at once
        where its manager is."""
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(partial(self._end, failed))

    def _give_up(self, why: StrataError) -> None:
        if self._task is not None and not self.handle.done() and self.handle.give_up(why):
            self._loop.call_soon(self._task.cancel)  # once it has begun: who waits for it elsewhere is told

    def _end(self, failed: Callable[[BaseException], None], task: "asyncio.Task[None]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not self.handle.done():  # given up before it began
            failed(error)
        self.over.set_result(None)


_unfinished: "dict[Future[None], int]" = {}
"""Saves, and the process that they run in, until nothing is left of them, not even the arrays that they held."""


@background.before_the_end
def finish_all() -> None:
    """A save whose handle was dropped is finished before Python ends, and so is one whose manager was."""
    for future, process in list(_unfinished.items()):
        if process == os.getpid():
            future.result()
