"""One private event loop on one thread, for everything Strata does beside the caller's own code.

Blocking calls hand their coroutine to it, so they work in scripts, under `asyncio.run` and in notebooks alike. It
starts with the first call, and again in a forked child, where the parent's thread does not exist. It ends when Python
does: what is still under way is given up before, since a thread that comes back from native code to a Python that is
gone brings the process down, and whatever is asked of it after that is refused.
"""

import asyncio
import atexit
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from strata.logs import get_logger

T = TypeVar("T")
logger = get_logger("strata")

_THREAD = "strata-loop"
END_SECONDS = 3.0
"""The longest that what is given up may take to end."""


class _Background:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ended = False
        self.thread: threading.Thread | None = None

    def running_loop(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.ended:
                raise RuntimeError("Python is ending: Strata can do nothing more in this process")
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self.thread = threading.Thread(target=self.loop.run_forever, name=_THREAD, daemon=True)
                self.thread.start()
                _end_as_child()
            return self.loop

    def end(self) -> None:
        with self.lock:
            self.ended = True
            loop = self.loop
        if loop is not None and self.thread is not threading.current_thread():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_give_up_all(), loop).result(END_SECONDS)


_background = _Background()


async def _give_up_all() -> None:
    under_way = asyncio.all_tasks() - {asyncio.current_task()}
    for task in under_way:
        task.cancel()
    if under_way:
        await asyncio.wait(under_way, timeout=END_SECONDS)


def _forget() -> None:
    global _background  # noqa: PLW0603  the child's own, since no thread of the parent lives in it
    _background = _Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


_to_finish: list[Callable[[], None]] = []
_last_words: list[Callable[[], None]] = []
_AFTER_ALL_ELSE = -100


def before_the_end(work: Callable[[], None]) -> Callable[[], None]:
    """Called when Python ends, the newest first, and before anything of `at_the_end`. In a child that `multiprocessing`
    started it may be called twice: the second time it should find nothing to do."""
    _to_finish.append(work)
    return atexit.register(work)


def at_the_end(work: Callable[[], None]) -> None:
    """Called when Python ends, and the loop is still there: after all else that waits for that, such as saves."""
    _last_words.append(work)


@atexit.register
def _end() -> None:
    with ExitStack() as works:  # all of them, also if one fails
        works.callback(_background.end)
        for work in reversed(_last_words):
            works.callback(work)


def _end_as_child() -> None:
    """`multiprocessing` ends forked children without what Python does at its end, but has an end of its own, which it
    forgets at each fork: so this is said once in each process that has anything to finish."""
    if multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _finish, exitpriority=_AFTER_ALL_ELSE)


def _finish() -> None:
    with ExitStack() as works:  # the last one first, and all of them, also if one fails
        for work in (*reversed(_last_words), *_to_finish):
            works.callback(work)


def loop() -> asyncio.AbstractEventLoop:
    """The private loop, running."""
    return _background.running_loop()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it on the private loop and wait for its result. An interrupt of the caller cancels it."""
    if threading.current_thread() is _background.thread:
        coroutine.close()
        raise RuntimeError("a blocking call of Strata was made on its own loop thread, where it would wait for itself")
    try:
        running = loop()
    except RuntimeError:
        coroutine.close()
        raise
    future = asyncio.run_coroutine_threadsafe(coroutine, running)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
    finally:
        del future  # its error refers to this frame


def start(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run it on the private loop, and wait for it when you like."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop())


async def awaited(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the private loop, and wait for its result on whichever loop the caller has."""
    if asyncio.get_running_loop() is _background.loop:
        return await work
    return await asyncio.wrap_future(start(work))


def when_dropped(
    owner: object, work: Callable[[], object], *, at_once: Callable[[], object] = lambda: None
) -> "weakref.finalize[..., object]":
    """Have `work` done, by a thread of its own, once nobody has `owner` any more; neither it nor `at_once`, which is
    done before and must take no lock, may refer to `owner`. Only the process that made it does that, and no child of
    it. `owner.close()` detaches what this returns."""
    finalizer = weakref.finalize(owner, _do_soon, os.getpid(), at_once, work)
    finalizer.atexit = False  # Python's end has `at_the_end`
    return finalizer


def _do_soon(process: int, at_once: Callable[[], object], work: Callable[[], object]) -> None:
    """The garbage collector may call this in the middle of anything: it takes no lock, and waits for nothing."""
    if process != os.getpid():
        return
    at_once()
    loop = _background.loop
    if loop is not None and not _background.ended:
        loop.call_soon_threadsafe(_do_by_thread, work)


def _do_by_thread(work: Callable[[], object]) -> None:
    def do() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  nobody is left to be raised it
            logger.warning("an object that was dropped without close() could not be closed: %s", error)

    threading.Thread(target=do, name="strata-dropped", daemon=True).start()


def run_while_alive(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """For what tidies up, and may come as late as when Python ends: then the process's own end has to do."""
    if not _background.ended:
        run(work())
