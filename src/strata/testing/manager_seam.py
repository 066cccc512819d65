"""Where tests take hold of a `CheckpointManager`: what it is made of, and the points of a save at which it can be held,
made to fail, or watched. Tests name a point, and not the method behind it.
"""

import asyncio
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.lineage import Term, read_lineage
from strata.checkpoint.running import Running
from strata.checkpoint.tieredsaver import TieredSaver
from strata.checkpoint.tiers import Tiers
from strata.checkpoint.uploader import Uploader
from strata.storage import StorageBackend

if TYPE_CHECKING:  # needs gRPC, and torch
    from strata.checkpoint.joining import Seat
    from strata.checkpoint.overlap import OptimizerOverlap


class Point(Enum):
    """A step of a save. The value: which part of the manager does it, in which method."""

    PLAN = "saver", "_prepared"
    STAGE = "saver", "_stage"
    FIND_PLACE = "saver", "_attempt"
    WRITE = "saver", "_write_to"
    READ_PARTS = "saver", "_read"
    COMMIT = "saver", "_commit"
    TELL_FAILURE = "saver", "_tell_failure"
    RETAIN = "checkpoints", "retain"
    # What rank 0 and the others say to each other.
    SETTLE = "agreement", "settle"
    AGREE_ON_BASE = "agreement", "go_on_from"
    TELL_NAMES = "agreement", "tell_names"
    ANNOUNCE = "agreement", "tell"
    GATHER_PARTS = "agreement", "parts"
    PART_IS_DONE = "agreement", "done"
    HEAR_OUTCOME = "agreement", "outcome"
    CALL_COORDINATOR = "session", "call"
    PUT_MANIFEST = "recovery", "put_manifest"
    FIND_UPLOAD = "uploader", "_next"


class Changed:
    """A point at which something else is done: until `undo()`, or the end of a `with`."""

    def __init__(self, part: object, method: str, act: Callable[..., Any]) -> None:
        self._part, self._method, self._real = part, method, getattr(part, method)
        setattr(part, method, partial(act, self._real))

    def undo(self) -> None:
        setattr(self._part, self._method, self._real)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


class Hold:
    """The first time that a point is reached: nothing more is done there before `let_go` is set, or the save is given
    up. `reached` is set when it is."""

    def __init__(self) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

    async def __call__(self, real: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            while not self.let_go.is_set():
                await asyncio.sleep(0.01)
        return await real(*given, **named)


class ManagerSeam:
    """One manager, for tests."""

    def __init__(self, manager: CheckpointManager | CheckpointReader) -> None:
        self._manager: Any = manager

    # -- what it is made of ------------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Checkpoints:
        return cast(Checkpoints, self._manager._checkpoints)

    @property
    def tiers(self) -> Tiers:
        """Of a manager with a local tier."""
        return cast(Tiers, self._manager._tiers)

    @property
    def uploader(self) -> Uploader:
        """Of a manager with a local tier."""
        return cast(TieredSaver, self._manager._saver).uploader

    @property
    def seat(self) -> "Seat":
        """Of a manager in the job of a coordinator."""
        return cast("Seat", self._manager._seat)

    async def join_job(self, seconds: float) -> None:
        """Now, and not with the first save of a process that is alone."""
        await self.seat.joined.join().present(seconds)

    def wrap_storage(self, around: Callable[[StorageBackend], StorageBackend]) -> None:
        """Put this between the manager and its storage."""
        storage = self.checkpoints.store.storage
        storage.inner = around(storage.inner)

    def leave_job(self) -> None:
        """As if its process had ended."""
        self.seat.give_up()

    # -- what state it is in -----------------------------------------------------------------------------------------

    @property
    def failures(self) -> int:
        """How many saves have failed in a row."""
        return cast(int, self._manager._saver._failures)

    @property
    def running(self) -> Running:
        """The save that is under way, or was last."""
        return cast(Running, self._manager._saver._running)

    @property
    def term(self) -> Term:
        """Which it has begun last."""
        return cast(Term, self._manager._saver._term)

    @property
    def is_newest_writer(self) -> bool:
        """Whether the newest term in the storage is its own."""
        newest = background.run(read_lineage(self.checkpoints.store)).newest
        return newest is not None and newest.writer == self._manager._saver._writer

    @property
    def overlap(self) -> "OptimizerOverlap":
        """Of a manager that overlaps its copies with the optimizer's step."""
        return cast("OptimizerOverlap", self._manager._saver._overlap)

    @property
    def arena_bytes(self) -> int:
        """How much memory it has for copies."""
        return cast(int, self._manager._saver.arena.size)

    # -- points of a save --------------------------------------------------------------------------------------------

    def instead(self, point: Point, act: Callable[..., Any]) -> Changed:
        """At this point do `act(real, ...)`, which is given what is done there otherwise, and its arguments."""
        part, method = point.value
        return Changed(self._part(part), method, act)

    def fail(self, point: Point, error: BaseException) -> Changed:
        """Raise this whenever the point is reached."""

        async def fails(*_: Any, **__: Any) -> Any:
            raise error

        return self.instead(point, fails)

    def hold(self, point: Point) -> Hold:
        hold = Hold()
        self.instead(point, hold)
        return hold

    def when_called(self, method: str, times: int = 1) -> threading.Event:
        """Set once it calls this method of the coordinator, or does so as often again."""
        is_called, left = threading.Event(), times

        async def noted(real: Callable[..., Any], called: str, **fields: Any) -> Any:
            nonlocal left
            left -= called == method
            if left <= 0:
                is_called.set()
            return await real(called, **fields)

        self.instead(Point.CALL_COORDINATOR, noted)
        return is_called

    def _part(self, name: str) -> object:
        match name:
            case "saver":
                return self._manager._saver
            case "agreement":
                return self._manager._saver._agreement
            case "session":
                return self.seat.joined
            case "recovery":
                return self.seat.council.recovery
            case "uploader":
                return self.uploader
        return self.checkpoints
