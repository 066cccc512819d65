"""The numbers and choices that decisions depend on: the coordinator's policy, and what a job says of itself.

Policy belongs to the running coordinator and may differ after a restart; replaying a journal never reads it.
Settings belong to the job, are journaled, and so are part of its state.
"""

from typing import Literal

import msgspec

from strata.core.ids import MAX_COUNT, check_choice, check_int, check_name, check_text
from strata.errors import InvalidInput

LONGEST_SECONDS = 366 * 86_400.0


class Policy(msgspec.Struct, frozen=True):
    """How patient the coordinator is, in seconds on its monotonic clock."""

    lease_seconds: float = 15.0
    heartbeat_seconds: float = 5.0
    sweep_seconds: float = 1.0
    """At most a heartbeat's interval, whatever is said: who goes silent is out within its lease and that."""
    attempt_seconds: float = 1800.0
    patient_seconds: float = 5.0
    """Waits shorter than this are the ordinary course of things, and not worth a word."""
    stalled_seconds: float = 90.0
    gone_members_kept: int = 1024

    def __post_init__(self) -> None:
        for name in (
            "lease_seconds",
            "heartbeat_seconds",
            "sweep_seconds",
            "attempt_seconds",
            "patient_seconds",
            "stalled_seconds",
        ):
            if not 0 < getattr(self, name) < LONGEST_SECONDS:  # not a number is not positive either
                raise InvalidInput(f"{name} must be positive and below a year, not {getattr(self, name)}")
        if self.lease_seconds < 2 * self.heartbeat_seconds:
            raise InvalidInput(
                f"lease_seconds ({self.lease_seconds}) must be at least twice heartbeat_seconds "
                f"({self.heartbeat_seconds}), or one lost heartbeat would fail a healthy worker"
            )
        check_int(self.gone_members_kept, "gone_members_kept")
        msgspec.structs.force_setattr(self, "sweep_seconds", min(self.sweep_seconds, self.heartbeat_seconds))


class Retention(msgspec.Struct, frozen=True):
    """Which committed checkpoints to keep. Zero and the empty string mean: no such rule; all zero keeps everything."""

    keep_count: int = 0
    keep_every: int = 0
    best_metric: str = ""
    best_mode: Literal["min", "max"] = "min"
    best_count: int = 1

    def __post_init__(self) -> None:
        # A journal holds settings, and is read whatever a version before this one let in.
        check_int(self.keep_count, "keep_count", most=MAX_COUNT)
        check_int(self.keep_every, "keep_every", most=MAX_COUNT)
        check_int(self.best_count, "best_count", least=1, most=MAX_COUNT)
        check_choice(self.best_mode, "best_mode", ("min", "max"))
        if check_text(self.best_metric, "best_metric"):
            check_name(self.best_metric, "best_metric")


class JobSettings(msgspec.Struct, frozen=True):
    """How a job wants losses and overlapping saves to be treated.

    barriers: `fail` ends a wait for everyone when a participant is lost; `shrink` goes on with the survivors.
    recovery: `rollback` takes every rank back to the recovery point when the world changes (collectives);
              `carry_on` leaves the survivors alone and hands a lost worker's shards to them.
    saves:    what to do with a save asked for while one is under way: `skip` it on every rank, or `wait`.
    """

    barriers: Literal["fail", "shrink"] = "fail"
    recovery: Literal["rollback", "carry_on"] = "rollback"
    saves: Literal["skip", "wait"] = "skip"
    retention: Retention = Retention()

    def __post_init__(self) -> None:
        choices = {"barriers": ("fail", "shrink"), "recovery": ("rollback", "carry_on"), "saves": ("skip", "wait")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if not isinstance(self.retention, Retention):
            raise InvalidInput(f"retention must be a Retention, not {type(self.retention).__name__}")
