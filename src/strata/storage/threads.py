"""Threads that do the work of a filesystem, and that never stop a program from ending.

Python's own pools refuse work once the main thread has ended. A last checkpoint is often written just then, by a thread
that the program still waits for; so this one goes on for as long as anybody gives it work.

Invariant: a thread refers to the tasks and to nothing that refers to its pool. So a pool that is dropped is collected,
and its threads end once they have done what they were given.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Task: TypeAlias = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """At most so many, started as they are needed."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._closed = False
        # The end of the process ends them by itself; and a forked child has none of them.
        weakref.finalize(self, _end, self._tasks, self._threads).atexit = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("these threads have been told to end")
            self._tasks.put((future, lambda: work(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_run, args=(self._tasks, self._idle), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What was given is still done."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _end(self._tasks, self._threads)
        if wait:
            for thread in self._threads:
                thread.join()


def _run(tasks: "SimpleQueue[_Task | None]", idle: threading.Semaphore) -> None:
    while (task := tasks.get()) is not None:
        future, work = task
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  whoever waits for the future gets it
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del task, future, work
        idle.release()


def _end(tasks: "SimpleQueue[_Task | None]", threads: Sequence[threading.Thread]) -> None:
    """It may be called by the garbage collector, in the middle of anything: it waits for nothing."""
    for _ in threads:
        tasks.put(None)
