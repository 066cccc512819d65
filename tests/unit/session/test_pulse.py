"""A process's side of its helper, where there can be none, or it does not read, or ends at once."""

import logging
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.config import Config
from strata.errors import InvalidInput
from strata.session import Pulse, Who
from strata.session.lines import Goodbye, Hello, Left, Lines
from strata.session.pulse import STARTS
from strata.v1 import coordinator_pb2 as pb
from tests.until import until

WHO = Who("llama", "w0", 0, 1)
REGISTERED = pb.RegisterResponse(incarnation=3, heartbeat_seconds=0.5)


def config(**flags: str) -> Config:
    return Config({"coordinator_url": "127.0.0.1:1", **flags}, {})


def python(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started in place of a Python with the helper in it."""
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    made = Pulse(config(token="secret-token"), WHO)
    yield made
    made.close()


def no_thread_is_left() -> bool:
    return not any(each.name == "strata-pulse" for each in threading.enumerate())


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_to_hang_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="stall_seconds"):
        Pulse(config(), WHO, stall_seconds=seconds)


@pytest.mark.parametrize("program", ["", None, "/usr/bin/uwsgi", "/opt/trainer"])
def test_where_python_cannot_be_started_again_there_is_no_helper_and_one_line_says_so(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, program: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    for _ in range(2):
        pulse.start()
        pulse.beat(REGISTERED)
        pulse.tick()
        pulse.left()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert "worker w0 has no helper" in caplog.text


def test_a_frozen_program_is_not_started_again(
    pulse: Pulse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    pulse.start()
    assert "worker w0 has no helper" in caplog.text


def test_a_helper_that_does_not_read_keeps_nobody_waiting(
    pulse: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600", monkeypatch)
    pulse.start()
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text("utf-8").strip())
    for step in range(5000):  # far more than a pipe holds
        pulse.beat(REGISTERED, pb.WORKER_STATE_TRAINING, step, 0)
    os.kill(int((tmp_path / "pid").read_text("utf-8")), 9)
    until(no_thread_is_left)


def test_a_helper_that_ends_at_once_is_started_a_few_times_and_then_given_up(
    pulse: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    python(tmp_path, f"echo started >> {tmp_path}/starts", monkeypatch)
    pulse.start()
    for _ in range(3 * STARTS):
        until(no_thread_is_left)
        pulse.beat(REGISTERED)
    assert (tmp_path / "starts").read_text("utf-8").splitlines() == ["started"] * STARTS
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * (STARTS - 1) + [logging.ERROR]


def test_a_helper_that_cannot_be_started_is_told_of_and_fails_nobody(
    pulse: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    pulse.start()
    until(no_thread_is_left)
    pulse.beat(REGISTERED)
    assert "cannot be started" in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_nothing_that_a_forked_child_does_reaches_the_helper(
    pulse: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(tmp_path, f"exec cat > {tmp_path}/said", monkeypatch)
    pulse.start()
    child = os.fork()
    if not child:
        pulse.beat(REGISTERED)
        pulse.left()
        pulse.close()
        pulse.start()
        os._exit(0)
    os.waitpid(child, 0)
    pulse.left()
    pulse.close()
    pulse.left()
    until(no_thread_is_left)
    with (tmp_path / "said").open("rb") as said:
        hello, *rest = Lines(said.fileno()).read()
    assert isinstance(hello, Hello)
    assert (hello.job, hello.worker, hello.settings["token"]) == ("llama", "w0", "secret-token")
    assert rest == [Left(), Goodbye()]
