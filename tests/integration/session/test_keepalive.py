"""The helper and a real coordinator, where the test says what a trainer would: when it speaks, and when it must not."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from strata.errors import BarrierFailed, Expired, Superseded
from strata.session.lines import Beat, Goodbye, Hello, Left, Line, Tick
from strata.session.watching import started_at
from strata.v1 import coordinator_pb2 as pb
from tests.integration.session.scenes import Helper, eventually, heartbeats, helper, is_there, lost, worker
from tests.servers.coordinator import Client, CoordinatorProcess

LEASE = 2.0


def hello(client: Client, address: str, made: Helper, *, stall_seconds: float = 60.0, started: int = 0) -> Hello:
    settings = {"coordinator_url": address, "token": "", "token_file": ""}
    return Hello(client.job, "w0", started or started_at(made.watched.pid), stall_seconds, settings)


def beat(who: Any, **said: Any) -> Beat:
    return Beat(who.incarnation, who.heartbeat_seconds, time.monotonic(), **said)


def test_it_speaks_for_a_process_that_says_nothing_and_repeats_what_that_said(
    running: CoordinatorProcess, client: Client
) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who, state=pb.WORKER_STATE_TRAINING, step=0, epoch=2))
        time.sleep(3 * LEASE)
        known = worker(running, client.job)
        assert (known["state"], known["step"], known["epoch"]) == ("training", 0, 2)
        assert lost(running, client.job) == []


def test_it_says_nothing_while_the_process_itself_does(running: CoordinatorProcess, client: Client) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who))
        before, count = heartbeats(running), 0
        while count < 20:
            count += 1
            client.heartbeat(who)
            made.say(beat(who))
            time.sleep(0.1)
        assert heartbeats(running) == before + count


def test_nobody_speaks_for_a_process_that_is_stopped(running: CoordinatorProcess, client: Client) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who))
        eventually(lambda: worker(running, client.job)["heard_seconds_ago"] < 0.4)
        os.kill(made.watched.pid, signal.SIGSTOP)
        eventually(lambda: lost(running, client.job), "the end of its lease")
        assert "its lease ran out" in lost(running, client.job)[0]
        again = client.register("w0", nonce="another", previous_incarnation=who.incarnation)
        os.kill(made.watched.pid, signal.SIGCONT)
        made.say(beat(again))
        time.sleep(2 * LEASE)
        assert len(lost(running, client.job)) == 1


def test_a_process_that_goes_on_before_its_lease_ran_out_is_spoken_for_again(
    patient: CoordinatorProcess, job: str
) -> None:
    with helper() as made, Client(patient.address, job) as client:
        who = client.register("w0")
        who.heartbeat_seconds = 0.2
        os.kill(made.watched.pid, signal.SIGSTOP)
        made.say(hello(client, patient.address, made), beat(who))
        time.sleep(1)
        before = heartbeats(patient)
        time.sleep(1)
        assert heartbeats(patient) == before
        os.kill(made.watched.pid, signal.SIGCONT)
        eventually(lambda: heartbeats(patient) > before + 2, "a heartbeat")


@pytest.mark.long
def test_nobody_speaks_for_a_process_that_hangs(running: CoordinatorProcess, client: Client) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made, stall_seconds=3.0), beat(who))
        time.sleep(2.5)
        assert lost(running, client.job) == []
        made.say(Tick(time.monotonic()))  # the coordinator did not answer it, but it lives
        time.sleep(2.5)
        assert lost(running, client.job) == []
        eventually(lambda: lost(running, client.job), "the end of its lease")


@pytest.mark.long
def test_nobody_speaks_for_an_incarnation_that_was_left(running: CoordinatorProcess, client: Client) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who))
        time.sleep(2 * LEASE)
        assert lost(running, client.job) == []
        made.say(Left())
        eventually(lambda: lost(running, client.job), "the end of its lease")
        assert is_there(made.pid)


@pytest.mark.long
def test_one_that_the_coordinator_refused_is_not_spoken_for_until_it_speaks_itself(
    running: CoordinatorProcess, client: Client
) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who))
        client.call("Deregister", worker_id="w0", incarnation=who.incarnation)
        time.sleep(LEASE)
        again = client.register("w0", nonce="another", previous_incarnation=who.incarnation)
        with pytest.raises(Superseded):
            client.heartbeat(who)
        eventually(lambda: len(lost(running, client.job)) == 2, "the end of a lease that nobody knows to renew")
        third = client.register("w0", nonce="third", previous_incarnation=again.incarnation)
        made.say(beat(third))
        time.sleep(2 * LEASE)
        assert len(lost(running, client.job)) == 2


def test_a_death_is_told_at_once_and_as_a_failure(patient: CoordinatorProcess, job: str) -> None:
    with helper() as made, Client(patient.address, job) as client:
        client.call("ConfigureJob", recovery="carry_on")
        who, other = client.register("w0"), client.register("w1")
        own = {"worker_id": "w1", "incarnation": other.incarnation}
        waiting = client.start("WaitBarrier", **own, barrier_id="b", arrival=1, expected_participants=2)
        made.say(hello(client, patient.address, made), beat(who))
        made.watched.kill()  # a zombie until this test waits for it
        with pytest.raises(BarrierFailed, match="w0 was lost before it came: its process died") as failed:
            client.result(waiting)
        assert failed.value.missing == ("w0",)
        known = worker(patient, job)
        assert known["state"] == "failed"
        assert f"its process died: process {made.watched.pid} on " in known["reason"]
        with pytest.raises(Expired, match="its process died"):
            client.heartbeat(who)
        eventually(lambda: not is_there(made.pid), "the end of the helper")


@pytest.mark.parametrize("last", [Goodbye(), Left()])
def test_who_has_left_before_it_ended_did_not_die(patient: CoordinatorProcess, job: str, last: Line) -> None:
    with helper() as made, Client(patient.address, job) as client:
        who = client.register("w0")
        made.say(hello(client, patient.address, made), beat(who))
        os.kill(made.pid, signal.SIGSTOP)  # it hears of both at once
        made.say(last)
        made.watched.kill()
        os.kill(made.pid, signal.SIGCONT)
        eventually(lambda: not is_there(made.pid), "the end of the helper")
        assert lost(patient, job) == []


def test_a_goodbye_ends_it_while_the_process_lives(patient: CoordinatorProcess, job: str) -> None:
    with helper() as made, Client(patient.address, job) as client:
        made.say(hello(client, patient.address, made), beat(client.register("w0")), Goodbye())
        eventually(lambda: not is_there(made.pid), "the end of the helper")
        assert made.watched.poll() is None
        assert lost(patient, job) == []


def test_a_process_that_died_before_the_helper_looked_is_told_of_too(patient: CoordinatorProcess, job: str) -> None:
    """Its number may be another's by then."""
    with helper() as made, Client(patient.address, job) as client:
        made.say(hello(client, patient.address, made, started=1), beat(client.register("w0")))
        eventually(lambda: lost(patient, job), "the news of its death")
        assert "its process died" in lost(patient, job)[0]


def test_a_coordinator_that_cannot_be_told_keeps_it_for_a_few_seconds_only(job: str) -> None:
    with helper() as made, Client("127.0.0.1:1", job) as client:
        made.say(hello(client, "127.0.0.1:1", made), Beat(1, 0.5, time.monotonic()))
        made.watched.kill()
        eventually(lambda: not is_there(made.pid), "the end of the helper")


def test_signals_that_are_meant_for_all_processes_of_a_job_do_not_end_it(
    running: CoordinatorProcess, client: Client
) -> None:
    with helper() as made:
        who = client.register("w0")
        made.say(hello(client, running.address, made), beat(who))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(made.pid, number)
        time.sleep(2 * LEASE)
        assert lost(running, client.job) == []


def test_it_imports_nothing_that_is_large() -> None:
    """A node has as many helpers as workers."""
    program = "import strata.session.keepalive, strata.rpc.client, sys; strata.rpc.client.load(); print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "grpc" in told
    assert not {"numpy", "torch", "jax", "pyarrow", "fastapi", "rich"} & set(told)
