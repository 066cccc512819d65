"""Where the wall time of a training run goes: how much of it made steps that still count, and what took the rest.

The law: every instant belongs to one cause, the innermost that was entered, or to none, which is "unattributed"; so the
seconds by cause add up to the wall time. Only steps are useful, and of those only the ones that no rollback took back.
Nothing here looks at a clock: whoever calls says what time it is, on one clock that never goes back. Within, times are
whole nanoseconds, so that nothing is lost by adding.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from strata.core.ids import check_choice, check_int
from strata.errors import InvalidInput

Cause: TypeAlias = Literal["step", "data", "checkpoint", "barrier", "recovery"]
CAUSES: tuple[str, ...] = get_args(Cause)
UNATTRIBUTED = "unattributed"

STEPS_KEPT = 100_000
"""Steps whose time is known one by one. Of those before them each is taken for one like the others."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a run up to an instant. `steps` and `samples` are those that count: none that was lost, and none twice."""

    wall_seconds: float
    seconds: Mapping[str, float]
    """By cause, "unattributed" among them."""
    goodput: float
    """The share of the wall time that was spent in steps that count: 0 to 1."""
    steps: int
    lost_steps: int
    samples: int | None
    """None where nobody said how many."""
    samples_per_second: float | None

    def as_resources(self) -> dict[str, float]:
        """The numbers worth a look, for heartbeats."""
        told = {
            "goodput_ratio": self.goodput,
            "data_wait_seconds": self.seconds["data"],
            "checkpoint_wait_seconds": self.seconds["checkpoint"],
            "barrier_wait_seconds": self.seconds["barrier"],
            "recovery_seconds": self.seconds["recovery"],
        }
        return told if self.samples_per_second is None else told | {"samples_per_second": self.samples_per_second}


class _Steps(NamedTuple):
    """Steps that were completed together, as far as is known: how many, their own time, and their samples."""

    steps: int
    nanoseconds: int
    samples: int

    def plus(self, other: "_Steps") -> "_Steps":
        return _Steps(self.steps + other.steps, self.nanoseconds + other.nanoseconds, self.samples + other.samples)

    def minus(self, other: "_Steps") -> "_Steps":
        return _Steps(self.steps - other.steps, self.nanoseconds - other.nanoseconds, self.samples - other.samples)

    def share(self, steps: int) -> "_Steps":
        """So many of them, each like the others."""
        return _Steps(steps, self.nanoseconds * steps // self.steps, self.samples * steps // self.steps)


_NONE = _Steps(0, 0, 0)


class Goodput:
    """The account of one process from `now` on. For one thread at a time."""

    def __init__(self, now: float) -> None:
        self._began = self._latest = _nanoseconds(now)
        self._spent = dict.fromkeys((*CAUSES, UNATTRIBUTED), 0)
        self._open: list[tuple[str, int]] = []
        """Causes that were entered and not left, each with the time that was its own so far."""
        self._recent: deque[_Steps] = deque()
        self._before = self._counted = _NONE
        self._lost_steps = 0
        self._samples_told = False

    def enter(self, cause: Cause, now: float) -> None:
        """From now on time goes to this cause, until it is left or another is entered within it."""
        check_choice(cause, "cause", CAUSES)
        if cause == "step" and any(entered == "step" for entered, _ in self._open):
            raise InvalidInput("a step was entered within a step: leave the one before first")
        self._pass(now)
        self._open.append((cause, 0))

    def leave(self, now: float, samples: int | None = None) -> None:
        """Leave the cause that was entered last. A step that is left is completed; `samples` is how many it was on."""
        if samples is not None:
            check_int(samples, "samples")
        cause, own = self._left(now)
        if cause == "step":
            self._completed(_Steps(1, own, samples or 0))
            self._samples_told = self._samples_told or samples is not None

    def abandon(self, now: float) -> None:
        """Leave the cause that was entered last, since it failed. A step that is not completed was of no use."""
        cause, own = self._left(now)
        if cause == "step":
            self._move_to_recovery(own)

    def put_down(self, cause: Cause, seconds: float, now: float) -> None:
        """Of the cause that was entered last, so many seconds until now were this one's: who waited says so
        afterwards, and perhaps on another thread. No more than it has had for its own."""
        self._pass(now)
        if not self._open:
            return
        entered, own = self._open[-1]
        moved = min(own, _nanoseconds(seconds))
        self._open[-1] = (entered, own - moved)
        self._spent[entered] -= moved
        self._spent[cause] += moved

    def lost(self, steps: int) -> int:
        """The last so many completed steps were taken back by a rollback. How many of them were made here, and counted
        until now: a rollback may go behind the beginning of this process."""
        left = min(check_int(steps, "steps"), self._counted.steps)
        gone = _NONE
        while gone.steps < left and self._recent:
            gone = gone.plus(self._recent.pop())
        if gone.steps < left:
            older = self._before.share(left - gone.steps)
            self._before, gone = self._before.minus(older), gone.plus(older)
        self._counted = self._counted.minus(gone)
        self._lost_steps += left
        self._move_to_recovery(gone.nanoseconds)
        return left

    def summary(self, now: float) -> Summary:
        """Up to this instant; what is under way counts as far as it is."""
        self._pass(now)
        wall = (self._latest - self._began) / 1e9
        seconds = {cause: spent / 1e9 for cause, spent in self._spent.items()}
        samples = self._counted.samples if self._samples_told else None
        return Summary(
            wall_seconds=wall,
            seconds=seconds,
            goodput=seconds["step"] / wall if wall else 0.0,
            steps=self._counted.steps,
            lost_steps=self._lost_steps,
            samples=samples,
            samples_per_second=None if samples is None else samples / wall if wall else 0.0,
        )

    def _pass(self, now: float) -> None:
        """What has passed since the last call is the innermost cause's."""
        instant = _nanoseconds(now)
        if instant < self._latest:
            raise InvalidInput(f"time went back by {(self._latest - instant) / 1e9:g} s: use a clock that never does")
        passed, self._latest = instant - self._latest, instant
        if self._open:
            cause, own = self._open[-1]
            self._open[-1] = (cause, own + passed)
        else:
            cause = UNATTRIBUTED
        self._spent[cause] += passed

    def _left(self, now: float) -> tuple[str, int]:
        if not self._open:
            raise InvalidInput("nothing was entered, so nothing can be left")
        self._pass(now)
        return self._open.pop()

    def _completed(self, step: _Steps) -> None:
        self._counted = self._counted.plus(step)
        self._recent.append(step)
        if len(self._recent) > STEPS_KEPT:
            self._before = self._before.plus(self._recent.popleft())

    def _move_to_recovery(self, nanoseconds: int) -> None:
        self._spent["step"] -= nanoseconds
        self._spent["recovery"] += nanoseconds


def _nanoseconds(now: float) -> int:
    try:
        return round(now * 1e9)
    except (OverflowError, ValueError):
        raise InvalidInput(f"{now!r} is no time") from None
