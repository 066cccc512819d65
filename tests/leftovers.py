"""The processes that tests start: each ends with the test, or with the fixture of a longer scope, that started it.

A test that passes and leaves a process behind fails. One that fails has it ended, so that no test behind it suffers.
Only Linux tells which processes are left.
"""

import gc
import os
import secrets
import signal
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_RUN = "TESTS_RUN"
"""In the environment of every process that this run starts: one whose parent is gone is known by it."""
_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Python starts these once in a process, and they end with it."""
ENDING_SECONDS = 5.0


class Process(NamedTuple):
    pid: int
    started: int
    """When, in the clock ticks of the kernel: another process may get the same number later."""

    @property
    def command(self) -> str:
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return ""


def children(of: int | None = None) -> set[Process]:
    """The processes that this one, or another, has started and that still run."""
    found = set()
    for listed in Path(f"/proc/{of or os.getpid()}/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended meanwhile
            found |= {_running(int(pid)) for pid in listed.read_text("utf-8").split()}
    return {each for each in found if each is not None}


def new_since(before: Iterable[Process]) -> set[Process]:
    """The children that were started since, but for Python's own. One that is about to end is let do so: it starts a
    helper, say, and a thread waits for it. torch ends the workers of a DataLoader that failed when the collector finds
    its iterator, which is in a cycle with the error."""
    before, deadline = set(before), time.monotonic() + ENDING_SECONDS
    if children() - before:
        gc.collect()
    while found := {each for each in children() - before if not any(name in each.command for name in _OF_PYTHON)}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return found


def end(processes: Iterable[Process]) -> list[str]:
    """Kill these and all that they have started, and wait until they are gone; gives their command lines."""
    told, killed = [], []
    for each in processes:
        told.append(f"process {each.pid}: {each.command or 'a forked child'}")
        for one in (each, *_descendants(each)):
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
            killed.append(one)
        with suppress(ChildProcessError):
            os.waitpid(each.pid, 0)
    deadline = time.monotonic() + ENDING_SECONDS
    while any(_running(each.pid) == each for each in killed) and time.monotonic() < deadline:
        time.sleep(0.02)
    return told


class Run:
    """One run of the tests in this process."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._before, self._outer = children(), os.environ.get(_RUN)
        os.environ[_RUN] = self._name

    def finish(self) -> list[str]:
        """End what is left of it; gives the command lines."""
        if self._outer is None:
            os.environ.pop(_RUN, None)
        else:
            os.environ[_RUN] = self._outer
        return end(new_since(self._before)) + end(self._staying_orphans())

    def _staying_orphans(self) -> set[Process]:
        """A helper whose trainer has just ended needs a moment to hear of it."""
        over = time.monotonic() + ENDING_SECONDS
        while (found := self._orphans()) and time.monotonic() < over:
            time.sleep(0.02)
        return found

    def _orphans(self) -> set[Process]:
        """The parents of some are gone, or they belong to nobody on purpose."""
        mark, found = f"{_RUN}={self._name}".encode(), set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(_running(int(folder.name)))
        return {each for each in found if each is not None and not any(name in each.command for name in _OF_PYTHON)}


class Watch:
    """A plugin, since pytest calls no hook of a conftest below its root for fixtures of the session."""

    def __init__(self) -> None:
        self._others: set[Process] = set()
        """Processes that are not the running test's: of fixtures with a longer scope, and from before."""
        self._has_failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        self._others, self._has_failed = children(), False
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """What a fixture with a longer scope starts belongs to that, also where a test asks for it late."""
        if fixturedef.scope == "function":
            return (yield)
        before = children()
        made = yield
        self._others |= children() - before
        return made

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._has_failed |= report.failed
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        yield
        left = end(new_since(self._others))
        if left and not self._has_failed:
            pytest.fail("the test is over, and has left:\n" + "\n".join(left), pytrace=False)


def hear_all_signals() -> None:
    """What a shell or `nohup` lets this run ignore every process that it starts would ignore, too. A handler that does
    nothing is not passed on: they act as anywhere else, and the run itself still ends by none of these."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _running(pid: int) -> Process | None:
    """None if it is over."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else Process(pid, int(fields[19]))
    return None


def _descendants(of: Process) -> list[Process]:
    return [one for each in children(of.pid) for one in (each, *_descendants(each))]
