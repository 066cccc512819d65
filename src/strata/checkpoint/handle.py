"""What `save_async` gives: a save under way."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from strata.checkpoint.saving import Report
from strata.errors import SaveReplaced, SaveSkipped, StrataError
from strata.texts import readable_bytes


class SaveHandle:
    """Awaiting it, or `wait_staged()`, means that the state may be changed again; `result()` that it is committed.

    Dropping it still saves. A save that failed raises from `result()`, and is told by the manager in any case; never by
    awaiting it, which would end a training loop or not, as the storage is quick to fail or slow. `tiered`: what is
    committed is uploaded yet; `wait_uploaded()` means that it is.
    """

    def __init__(self, step: int, *, tiered: bool = False, name: str = "") -> None:
        self.step = step
        self.name = name
        """What ranks that save together call it."""
        self.report = Report(step)
        self.skipped = ""
        """Why it was not saved at all, if it was not."""
        self.told = False
        """Whether somebody has been raised its failure."""
        self.given_up: StrataError | None = None
        """Why, if it was by whoever saves here, before it was decided."""
        self._is_decided = False
        self._staged = threading.Event()
        self._future: Future[Report] = Future()
        self._future.set_running_or_notify_cancel()
        self._uploaded: Future[Report] = Future() if tiered else self._future

    def __repr__(self) -> str:
        return f"SaveHandle(step={self.step}, {self.status})"

    @property
    def status(self) -> str:
        """staging, writing, committed, skipped, replaced or failed."""
        if self.skipped:
            return "skipped"
        if self._future.done():
            error = self._future.exception()
            if isinstance(error, SaveReplaced):
                return "replaced"
            return "failed" if error else "committed"
        return "writing" if self._staged.is_set() else "staging"

    @property
    def progress(self) -> str:
        """How far it is, for people."""
        report = self.report
        return f"{readable_bytes(report.written_bytes)} of {readable_bytes(report.state_bytes)} are written"

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._future.done()

    def wait_staged(self, timeout: float | None = None) -> None:
        """Until the state may be changed again. TimeoutError if that takes longer."""
        if not self._staged.wait(timeout):
            raise TimeoutError(f"the state of step {self.step} is not copied yet")

    def result(self, timeout: float | None = None) -> Report:
        """Once it is committed; raises why it is not. TimeoutError if that takes longer: the save goes on."""
        try:
            error = self._future.exception(timeout)
        except TimeoutError:
            raise TimeoutError(
                f"the save of step {self.step} is not over after {timeout:g} s: {self.progress}"
            ) from None
        self.told = True
        try:
            if error is not None:
                raise error
            self._check_skipped()
            return self.report
        finally:
            del self, error  # the error refers to this frame

    def _check_skipped(self) -> None:
        if self.skipped:
            raise SaveSkipped(f"step {self.step} was not saved: {self.skipped}")

    def wait_uploaded(self, timeout: float | None = None) -> Report:
        """Once it is committed behind the local tier, too; raises why it will not be. TimeoutError if that takes
        longer: the upload goes on. Where there is no local tier, the same as `result()`."""
        if self._uploaded is self._future:
            return self.result(timeout)
        error = self._uploaded.exception(timeout)
        if error is not None:
            raise error
        self._check_skipped()
        return self.report

    def error(self) -> BaseException | None:
        """Why it failed, once it has."""
        return self._future.exception() if self._future.done() else None

    def __await__(self) -> Generator[Any, None, "SaveHandle"]:
        if not self._staged.is_set():
            yield from asyncio.to_thread(self._staged.wait).__await__()
        return self

    # -- for the manager ---------------------------------------------------------------------------------------------

    def give_up(self, why: StrataError) -> bool:
        """Whether that is still possible. It and `decide` are for the loop alone, so one is first."""
        if self.given_up is None and not self._is_decided:
            self.given_up = why
        return self.given_up is not None

    def decide(self) -> None:
        """From here on the commit may have been made: it is finished, and not given up any more."""
        if self.given_up is not None:
            raise asyncio.CancelledError
        self._is_decided = True

    def staged(self) -> None:
        self._staged.set()

    def committed(self) -> None:
        self._staged.set()
        self._future.set_result(self.report)

    def uploaded(self) -> None:
        if not self._uploaded.done():
            self._uploaded.set_result(self.report)

    def not_uploaded(self, error: BaseException) -> None:
        if not self._uploaded.done():
            self._uploaded.set_exception(error)

    def skip(self, why: str) -> None:
        self.skipped = why
        self.committed()
        self.uploaded()

    def failed(self, error: BaseException) -> None:
        self._staged.set()
        if not self._future.done():
            self._future.set_exception(error)
        self.not_uploaded(error)
