"""Threads that do the work of a filesystem, and that never stop a program from ending.

Python's own pools refuse work once the main thread has ended. A last checkpoint is often written just then, by a thread
that the program still waits for; so this one goes on for as long as anybody gives it work.
"""

import threading
from collections.abc import Callable
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

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("these threads have been told to end")
            self._tasks.put((future, lambda: work(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What was given is still done."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
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
            self._idle.release()
