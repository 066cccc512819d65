"""A process that is watched from outside: alive, stopped, dead, or another that has its number."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.session import watching
from strata.session.watching import Watched, started_at
from tests.until import until


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture(params=["a kernel that tells", "a kernel that does not", "no /proc"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "a kernel that tells":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    if request.param == "no /proc":
        monkeypatch.setattr(watching, "PROC", Path("/nothing/here"))


@pytest.mark.usefixtures("kernel")
def test_one_that_is_stopped_is_alive_and_can_do_nothing(sleeping: subprocess.Popen[bytes]) -> None:
    watched = Watched(sleeping.pid, started_at(sleeping.pid))
    assert not watched.is_halted
    sleeping.send_signal(signal.SIGSTOP)
    until(lambda: watched.is_halted)
    assert not watched.is_dead
    sleeping.send_signal(signal.SIGCONT)
    until(lambda: not watched.is_halted)
    watched.close()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("reaped", [False, True])
def test_its_death_is_told_whether_or_not_anybody_waits_for_it(sleeping: subprocess.Popen[bytes], reaped: bool) -> None:
    watched = Watched(sleeping.pid, started_at(sleeping.pid))

    async def wait() -> None:
        async with asyncio.timeout(20):
            dying = asyncio.ensure_future(watched.died())
            await asyncio.sleep(0.05)
            assert not dying.done()
            sleeping.kill()
            if reaped:
                sleeping.wait()
            await dying

    asyncio.run(wait())
    assert watched.is_dead
    watched.close()


@pytest.mark.usefixtures("kernel")
def test_one_that_was_dead_before_is_told_of_at_once(sleeping: subprocess.Popen[bytes]) -> None:
    started = started_at(sleeping.pid)
    sleeping.kill()
    sleeping.wait()
    watched = Watched(sleeping.pid, started)
    asyncio.run(asyncio.wait_for(watched.died(), 20))
    watched.close()
    watched.close()


def test_another_process_with_its_number_is_not_it(sleeping: subprocess.Popen[bytes]) -> None:
    started = started_at(sleeping.pid)
    assert started is not None
    watched = Watched(sleeping.pid, started - 1)
    assert watched.is_dead
    asyncio.run(asyncio.wait_for(watched.died(), 20))
    watched.close()


def test_a_name_with_parentheses_confuses_nobody(tmp_path: Path) -> None:
    program = tmp_path / "a) T (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as process:
        try:
            watched = Watched(process.pid, started_at(process.pid))
            assert not watched.is_halted
            assert not watched.is_dead
            watched.close()
        finally:
            process.kill()
