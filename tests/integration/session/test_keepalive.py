"""The helper as a process, beside a real coordinator, where the test says what a trainer would.

For whom it speaks and until when is in tests/unit/session/test_keeper.py, on virtual time.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from strata.errors import BarrierFailed, Expired
from strata.session.lines import Beat, Goodbye, Hello, Left, Line
from strata.session.watching import started_at
from strata.v1 import coordinator_pb2 as pb
from tests.integration.session.scenes import Helper, helper, is_there, lost, worker
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.until import until

SOON = 0.2
"""The helper speaks five times in a second."""


def hello(client: Client, address: str, made: Helper, *, started: int = 0) -> Hello:
    settings = {"coordinator_url": address, "token": "", "token_file": ""}
    return Hello(client.job, "w0", started or started_at(made.watched.pid), 60.0, settings)


def beat(who: Any, **said: Any) -> Beat:
    return Beat(who.incarnation, SOON, time.monotonic(), **said)


def heard(running: CoordinatorProcess, job: str) -> bool:
    """The coordinator has just heard of w0, which says nothing itself."""
    return bool(worker(running, job)["heard_seconds_ago"] < SOON)


def test_it_speaks_for_a_process_that_says_nothing_and_repeats_what_that_said(
    running: CoordinatorProcess, client: Client
) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who, state=pb.WORKER_STATE_TRAINING, step=0, epoch=2))
        known = until(lambda: found if (found := worker(running, client.job))["step"] == 0 else {})
        assert (known["state"], known["step"], known["epoch"]) == ("training", 0, 2)


def test_nobody_speaks_for_a_process_that_is_stopped(hasty: CoordinatorProcess, job: str) -> None:
    with helper() as made, Client(hasty.address, job) as client:
        who = client.register("w0")
        made.say(hello(client, hasty.address, made), beat(who))
        until(lambda: heard(hasty, job))
        os.kill(made.watched.pid, signal.SIGSTOP)
        until(lambda: lost(hasty, job))
        assert "its lease ran out" in lost(hasty, job)[0]


def test_a_death_is_told_at_once_and_as_a_failure(running: CoordinatorProcess, client: Client) -> None:
    with helper() as made:
        client.call("ConfigureJob", recovery="carry_on")
        who, other = client.register("w0"), client.register("w1")
        own = {"worker_id": "w1", "incarnation": other.incarnation}
        waiting = client.start("WaitBarrier", **own, barrier_id="b", arrival=1, expected_participants=2)
        made.say(hello(client, running.address, made), beat(who))
        made.watched.kill()  # a zombie until this test waits for it
        with pytest.raises(BarrierFailed, match="w0 was lost before it came: its process died") as failed:
            client.result(waiting)
        assert failed.value.missing == ("w0",)
        known = worker(running, client.job)
        assert known["state"] == "failed"
        assert f"its process died: process {made.watched.pid} on " in known["reason"]
        with pytest.raises(Expired, match="its process died"):
            client.heartbeat(who)
        until(lambda: not is_there(made.pid))


@pytest.mark.parametrize("last", [Goodbye(), Left()])
def test_who_has_left_before_it_ended_did_not_die(running: CoordinatorProcess, client: Client, last: Line) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who))
        os.kill(made.pid, signal.SIGSTOP)  # it hears of both at once
        made.say(last)
        made.watched.kill()
        os.kill(made.pid, signal.SIGCONT)
        until(lambda: not is_there(made.pid))
        assert lost(running, client.job) == []


def test_a_goodbye_ends_it_while_the_process_lives(running: CoordinatorProcess, client: Client) -> None:
    with helper() as made:
        made.say(hello(client, running.address, made), beat(client.register("w0")), Goodbye())
        until(lambda: not is_there(made.pid))
        assert made.watched.poll() is None
        assert lost(running, client.job) == []


def test_a_process_that_died_before_the_helper_looked_is_told_of_too(
    running: CoordinatorProcess, client: Client
) -> None:
    """Its number may be another's by then."""
    with helper() as made:
        made.say(hello(client, running.address, made, started=1), beat(client.register("w0")))
        until(lambda: lost(running, client.job))
        assert "its process died" in lost(running, client.job)[0]


def test_signals_that_are_meant_for_all_processes_of_a_job_do_not_end_it(
    running: CoordinatorProcess, client: Client
) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(made.pid, number)
        made.say(beat(who, step=7))
        until(lambda: worker(running, client.job)["step"] == 7)


def test_it_imports_nothing_that_is_large() -> None:
    """A node has as many helpers as workers."""
    program = "import strata.session.keepalive, strata.rpc.client, sys; strata.rpc.client.load(); print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "grpc" in told
    assert not {"numpy", "torch", "jax", "pyarrow", "fastapi", "rich"} & set(told)
