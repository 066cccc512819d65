"""A notice that this process will be killed: SIGTERM, or SIGUSR1 as Slurm sends it (`--signal=USR1@120`).

It becomes a save and a stop at one step of all ranks, if there is time for that: what a save takes was measured at
those before. If there is not, the last commit is kept, and that is said.
"""

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from strata.checkpoint.telling import COMMITTED, SaveEvent
from strata.core.ids import check_seconds
from strata.logs import get_logger

logger = get_logger("strata.worker")

REQUEUE = 75
"""The exit status of a process that was preempted and wants to be started again: EX_TEMPFAIL of sysexits.h."""
REQUEUED = "preempted"
"""How a process that was given notice begins to say why the job stops: the others want to be started again, too."""
SIGNALS = tuple(name for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
SPARE = 1.5
"""A save may take so much longer than those before it did."""
KEPT = 0.3
"""Of the time of a notice: not spent on waiting for others."""


class Stopped(SystemExit):
    """Training ends here, before its data does: status 0, since an operator wanted it."""


class Preempted(Stopped):
    """Training is to be started again elsewhere, or later: status 75."""


def is_requeue(reason: str) -> bool:
    """Whether a job stops since a process of it was given notice."""
    return reason.startswith(f"{REQUEUED}: ")


class Notice(NamedTuple):
    """`is_enough`: whether there is time to save."""

    reason: str
    seconds: float
    is_enough: bool


class Notices:
    """Of this process, from `watch` to `unwatch`. `given` is called with each notice that comes: within a signal
    handler, so it must not wait."""

    def __init__(self, seconds: float, given: Callable[[Notice], None]) -> None:
        check_seconds(seconds, "notice_seconds")
        self.seconds, self._given = seconds, given
        self._process = 0
        self._before: dict[str, Any] = {}
        self._save_seconds = 0.0
        self.committed: int | None = None
        """The last step that is."""

    def saved(self, event: SaveEvent) -> None:
        """What saves take, measured: the longest of them counts, and slowly less."""
        if event.outcome == COMMITTED:
            self.committed = event.step
            self._save_seconds = max(event.durable_seconds, 0.8 * self._save_seconds)

    def watch(self) -> None:
        """Python hands signals to the main thread alone: elsewhere nothing is watched."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "%s are not watched, and nothing is saved when they come: Training is in thread %r, and Python hands "
                "signals to the main thread alone. Train there; or, with an orchestrator, set a handler there that "
                "calls its ask_to_stop",
                " and ".join(SIGNALS),
                threading.current_thread().name,
            )
            return
        self._process = os.getpid()
        for name in SIGNALS:
            self._before[name] = signal.signal(getattr(signal, name), self._on_signal)

    def unwatch(self) -> None:
        for name, handler in self._before.items():
            signal.signal(getattr(signal, name), handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def end(self) -> None:
        """Instead of `unwatch`, where this process ends because of a notice: launchers send more than one, and none of
        those is to change its exit status."""
        for name in self._before:
            number = getattr(signal, name)
            signal.signal(number, _passed_over)
            atexit.register(signal.signal, number, signal.SIG_IGN)  # Python takes back its own handlers long before
        self._before = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._on_signal_in_child(number)
            return
        self.give(f"{signal.Signals(number).name} at {time.strftime('%H:%M:%S')}")

    @property
    def kept_seconds(self) -> float:
        """Of the time of a notice: for a save, and for ending in good order."""
        return max(KEPT * self.seconds, SPARE * self._save_seconds)

    def _on_signal_in_child(self, number: int) -> None:
        """A forked child is not in the job. Who sends it SIGTERM wants it to end; SIGUSR1 goes to all processes of a
        Slurm step as notice, and a worker of a loader that ended at it would end the run before it could save."""
        if number == signal.SIGTERM:
            self.unwatch()
            os.kill(os.getpid(), number)

    def give(self, reason: str) -> None:
        is_enough = SPARE * self._save_seconds < self.seconds
        if not is_enough:
            kept = "nothing is committed yet" if self.committed is None else f"step {self.committed} stays the last one"
            left, takes = self.seconds, self._save_seconds
            logger.warning("%s: %g s are left, and a save takes %.1f s: %s", reason, left, takes, kept)
        self._given(Notice(reason, self.seconds, is_enough))


def _passed_over(number: int, frame: FrameType | None) -> None:
    """Unlike an ignored one, it is what it was again in programs that this process starts."""
