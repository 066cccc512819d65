"""An asyncio loop on virtual time: where it would wait, its clock leaps. No sockets, no threads, no surprises.

Whoever a task belongs to is known: it is `owned` by one process of the simulation, and ends when that is killed. What
asks for the time of day or for a random name within `on_virtual_time` gets those of the simulation.
"""

import asyncio
import contextvars
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DAWN = 1_700_000_000.0
"""The time of day at which every simulation begins."""


class ProcessDied(BaseException):
    """What a process gets for whatever it tries after its death: nothing may catch it and go on."""


class Owner:
    """A process of the simulation, as far as its tasks go. Frozen, it does nothing that others could see."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._made = 0
        self._thawed = asyncio.Event()
        self._thawed.set()

    def take(self, task: "asyncio.Task[Any]") -> None:
        self._made += 1
        number = self._made
        self._tasks[number] = task
        task.add_done_callback(lambda done: self._ended(number, done))

    def _ended(self, number: int, task: "asyncio.Task[Any]") -> None:
        del self._tasks[number]
        if not self.alive and not task.cancelled():
            task.exception()  # nobody is left to ask for it

    def run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """As a task of its own."""
        context = contextvars.Context()
        context.run(_owner.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def kill(self) -> None:
        """At whatever it awaits now."""
        self.alive = False
        self._thawed.set()
        for _, task in sorted(self._tasks.items()):
            task.cancel()

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    @property
    def is_frozen(self) -> bool:
        return not self._thawed.is_set()

    async def act(self) -> None:
        """To be awaited before anything that others could see."""
        while self.is_frozen and self.alive:
            await self._thawed.wait()
        self.check()

    def check(self) -> None:
        if not self.alive:
            raise ProcessDied(self.name)


_owner: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("strata_simulated_process", default=None)


def outside(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """As a task of no process: of the storage, say, which goes on whoever dies."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


class _Leaping(selectors.SelectSelector):
    """Nothing is ever ready to be read: the time until the next timer passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits for somebody else: nothing will ever happen any more")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at 0."""

    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)
        self.set_task_factory(_owned_task)
        self.set_exception_handler(_ignore)

    def time(self) -> float:
        return self._leaping.now

    def _write_to_self(self) -> None:
        """There is nobody to be woken up."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """At once: a thread would come at a moment that no seed decides."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  raised where it is awaited
            done.set_exception(error)
        return done


def _owned_task(
    loop: asyncio.AbstractEventLoop, work: Any, *, context: contextvars.Context | None = None, **named: Any
) -> "asyncio.Task[Any]":
    task = asyncio.Task(work, loop=loop, context=context, **named)
    owner = _owner.get() if context is None else context.get(_owner)
    if owner is not None:
        owner.take(task)
    return task


def _ignore(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
    """Errors that nobody asked for are those of tasks that were given up."""


@contextmanager
def on_virtual_time(seed: object) -> Iterator[VirtualLoop]:
    """A loop; and while this lasts, the time of day, names of machines and random names are the simulation's."""
    rng = Random(f"names {seed}")
    loop = VirtualLoop()
    before = time.time, secrets.token_hex, socket.gethostname
    try:
        time.time = lambda: DAWN + loop.time()
        secrets.token_hex = lambda nbytes=None: rng.randbytes(nbytes or 32).hex()
        socket.gethostname = lambda: "host"
        yield loop
    finally:
        time.time, secrets.token_hex, socket.gethostname = before
        loop.close()
