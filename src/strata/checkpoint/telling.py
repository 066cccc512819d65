"""What became of each save: a line for people, an event for programs, and numbers for a dashboard.

The numbers are Prometheus', in its default registry, from the first save on: whatever a training process exports shows
them too.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import msgspec

from strata.checkpoint.saving import Report
from strata.logs import get_logger
from strata.texts import readable_bytes

logger = get_logger("strata.checkpoint")

COMMITTED, FAILED, SKIPPED, REPLACED = "committed", "failed", "skipped", "replaced"
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class SaveEvent(msgspec.Struct, frozen=True):
    """A save that is over: committed, failed, skipped or replaced, and why if it is not committed.

    stall_seconds: how long the caller was kept. durable_seconds: from the call to the commit.
    """

    outcome: str
    job_id: str
    step: int
    unix_seconds: float
    state_bytes: int
    written_bytes: int
    referenced_bytes: int
    stall_seconds: float
    durable_seconds: float
    mb_per_second: float
    reason: str = ""


Listener: TypeAlias = Callable[[SaveEvent], None]


class Telling:
    """Tells of the saves of one job."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def committed(self, report: Report) -> None:
        logger.info(
            "saved step %d: %s in %.2f s (%.0f MB/s), held training up for %.0f ms",
            report.step,
            readable_bytes(report.written_bytes),
            report.durable_seconds,
            report.mb_per_second,
            1000 * report.stall_seconds,
        )
        self._tell(COMMITTED, report, "")

    def failed(self, report: Report, error: BaseException, in_a_row: int) -> None:
        logger.error("the save of step %d failed (%d in a row): %s", report.step, in_a_row, error)
        self._tell(FAILED, report, str(error) or type(error).__name__)

    def skipped(self, report: Report, why: str) -> None:
        logger.warning("step %d is not saved: %s", report.step, why)
        self._tell(SKIPPED, report, why)

    def abandoned(self, report: Report, why: str) -> None:
        logger.warning("%s", why)
        self._tell(FAILED, report, why)

    def replaced(self, report: Report, why: str) -> None:
        logger.warning("%s", why)
        self._tell(REPLACED, report, why)

    def _tell(self, outcome: str, report: Report, reason: str) -> None:
        is_committed = outcome == COMMITTED
        event = SaveEvent(
            outcome,
            self._job,
            report.step,
            time.time(),
            report.state_bytes,
            report.written_bytes,
            report.referenced_bytes if is_committed else 0,
            report.stall_seconds,
            report.durable_seconds,
            report.mb_per_second,
            reason,
        )
        for listener in (_count, *self.listeners):
            try:
                listener(event)
            except Exception as error:
                error.__context__ = None  # why the save failed, if it did, is told already
                logger.exception("a listener failed at the save of step %d", report.step)


def _count(event: SaveEvent) -> None:
    numbers = _numbers()
    numbers.saves.labels(event.job_id, event.outcome).inc()
    if event.outcome == COMMITTED:
        numbers.stall.labels(event.job_id).observe(event.stall_seconds)
        numbers.durable.labels(event.job_id).observe(event.durable_seconds)
        numbers.written.labels(event.job_id).inc(event.written_bytes)
        numbers.referenced.labels(event.job_id).inc(event.referenced_bytes)
        numbers.rate.labels(event.job_id).set(event.mb_per_second)
        numbers.step.labels(event.job_id).set(event.step)


def count_upload(job: str, outcome: str, size: int = 0) -> None:
    """Of a checkpoint from the local tier to the storage behind: uploaded, failed or refused."""
    _numbers().uploads.labels(job, outcome).inc()
    _numbers().uploaded.labels(job).inc(size)


def show_behind(job: str, count: int) -> None:
    """How many are to be uploaded."""
    _numbers().behind.labels(job).set(count)


lock = threading.Lock()


def _unlock() -> None:
    """In a forked child: whoever made them does not live there."""
    global lock  # noqa: PLW0603
    lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class _Numbers:
    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        job = ["job"]
        self.saves = Counter("strata_checkpoint_saves", "Saves that are over, by outcome.", ["job", "outcome"])
        self.stall: Any = Histogram(
            "strata_checkpoint_stall_seconds", "How long saves kept their callers.", job, buckets=SECONDS
        )
        self.durable: Any = Histogram(
            "strata_checkpoint_durable_seconds", "From the call to the commit.", job, buckets=SECONDS
        )
        self.written = Counter("strata_checkpoint_written_bytes", "Written by committed saves.", job)
        self.referenced = Counter("strata_checkpoint_referenced_bytes", "Not written again, but referred to.", job)
        self.rate = Gauge("strata_checkpoint_mb_per_second", "Of the latest save.", job)
        self.step = Gauge("strata_checkpoint_step", "The latest that this process committed.", job)
        self.uploads = Counter("strata_checkpoint_uploads", "Tries to upload a checkpoint.", ["job", "outcome"])
        self.uploaded = Counter("strata_checkpoint_uploaded_bytes", "Of checkpoints that were uploaded.", job)
        self.behind = Gauge("strata_checkpoint_behind", "Checkpoints on the local disk alone.", job)


def _numbers() -> _Numbers:
    with lock:  # two saves may end at once, and none may be made twice
        return _made()


@cache
def _made() -> _Numbers:
    return _Numbers()
