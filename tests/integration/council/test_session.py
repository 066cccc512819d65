"""A worker's session with a real coordinator: through restarts of either side, silence, and another of its name."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from strata import background
from strata.config import Config
from strata.errors import Expired, InvalidInput, Refused, Superseded
from strata.rpc import RpcError
from strata.session import Session, Who, is_silence, join, leave
from strata.v1 import coordinator_pb2 as pb
from tests.integration.session.scenes import eventually
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

JOB = "session"


def settings(running: CoordinatorProcess) -> Config:
    return Config({"coordinator_url": running.address}, {})


def call(session: Session, method: str, **fields: Any) -> Any:
    return background.run(session.call(method, **fields))


def workers(running: CoordinatorProcess) -> dict[str, str]:
    found = running.get("/api/v1/workers")["items"]
    return {each["worker_id"]: each["state"] for each in found if each["job_id"] == JOB}


def test_it_is_heard_of_for_as_long_as_it_lasts_and_then_leaves(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    call(session, "ListCheckpoints")
    time.sleep(5)  # more than a lease
    assert workers(running)["w0"] not in ("failed", "left")
    leave(session)
    assert workers(running)["w0"] == "left"
    with pytest.raises(Expired, match="has left"):
        call(session, "ListCheckpoints")


def test_a_token_that_was_never_right_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the-right-token")
    with coordinator(tmp_path, "--token-file", str(tmp_path / "token")) as running:
        wrong = Config({"coordinator_url": running.address, "token": "a-wrong-token"}, {})
        session = join(wrong, Who(JOB, "w0", 0, 1))
        for _ in range(2):
            with pytest.raises(RpcError, match="UNAUTHENTICATED") as refusal:
                call(session, "ListCheckpoints", within=60)
            assert not is_silence(refusal.value)
        leave(session)


def test_who_does_not_answer_is_named(running: CoordinatorProcess) -> None:
    running.kill()
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    with pytest.raises(RpcError, match=f"the coordinator at {running.address} did not answer ListCheckpoints"):
        call(session, "ListCheckpoints", within=0.5)
    leave(session)


def test_a_process_has_one_session_for_all_who_need_it(running: CoordinatorProcess) -> None:
    who = Who(JOB, "w0", 0, 1)
    first, second = join(settings(running), who), join(settings(running), who)
    assert first is second
    with pytest.raises(InvalidInput, match="already"):
        join(settings(running), who._replace(rank=1, world_size=2))
    leave(first)
    call(second, "ListCheckpoints")
    leave(second)
    assert join(settings(running), who) is not first
    leave(join(settings(running), who))


def test_it_goes_on_when_the_coordinator_comes_back(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    call(session, "ListCheckpoints")
    incarnation = session.registered.incarnation if session.registered else 0
    running.kill()
    with pytest.raises(RpcError) as silence:
        call(session, "ListCheckpoints", within=0.5)
    assert is_silence(silence.value)
    running.start()
    call(session, "ListCheckpoints")
    assert session.registered is not None
    assert session.registered.incarnation == incarnation
    leave(session)


def test_it_begins_before_there_is_a_coordinator(running: CoordinatorProcess) -> None:
    running.kill()
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    time.sleep(0.3)
    running.start()
    call(session, "ListCheckpoints")
    leave(session)


def test_one_that_was_given_up_comes_back_as_another(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    call(session, "ListCheckpoints")
    assert session.registered is not None
    before = session.registered

    async def stand_still() -> None:
        time.sleep(6)

    background.run(stand_still())
    eventually(lambda: session.registered is not None and session.registered.incarnation > before.incarnation)
    with pytest.raises(Expired, match="has come back"):  # a call that took so long: it is not told to stop for good
        background.run(session._asked("Recover", before, 5.0, {}))
    call(session, "Recover")
    leave(session)


def test_one_whose_name_another_process_took_is_told_so_for_good(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    call(session, "ListCheckpoints")
    with Client(running.address, JOB) as other:
        other.register("w0", rank=0, world_size=1)
        with pytest.raises(Superseded):
            call(session, "Recover")
        eventually(lambda: session.registered is None)
        for _ in range(2):
            with pytest.raises(Superseded, match="another process took its name"):
                call(session, "ListCheckpoints")
    leave(session)


def test_a_rank_that_is_refused_for_now_is_tried_again(running: CoordinatorProcess) -> None:
    with Client(running.address, JOB) as other:
        holder = other.register("another", rank=0, world_size=1)
        session = join(settings(running), Who(JOB, "w0", 0, 1))
        time.sleep(0.3)
        other.call("Deregister", worker_id="another", incarnation=holder.incarnation)
    call(session, "ListCheckpoints")
    leave(session)


def test_a_rank_that_cannot_be_is_told_to_all_who_call(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 3, 2))
    with pytest.raises(Refused, match="ranks 0 to 1"):
        call(session, "ListCheckpoints")
    leave(session)


def test_a_command_is_carried_out_once_however_often_it_comes(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    seen: list[int] = []

    async def put(command: pb.Command) -> None:
        seen.append(command.attempt)
        await asyncio.sleep(1.5)  # several heartbeats
        await session.call("CommitCheckpoint", attempt=command.attempt)

    session.on(pb.Command.KIND_PUT_MANIFEST, put)
    attempt = call(session, "BeginCheckpoint", step=1).attempt
    call(session, "AckCheckpoint", attempt=attempt, digest="d", part_bytes=1)
    status = pb.ATTEMPT_STATUS_COMMITTED
    eventually(lambda: call(session, "GetCheckpoint", attempt=attempt).checkpoint.status == status)
    assert seen == [attempt]
    leave(session)


def test_a_stopped_coordinator_is_silence_and_not_a_failure(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 0, 1))
    call(session, "ListCheckpoints")
    running.signal(signal.SIGSTOP)
    try:
        with pytest.raises(RpcError) as silence:
            call(session, "ListCheckpoints", within=0.5)
        assert is_silence(silence.value)
    finally:
        running.signal(signal.SIGCONT)
    call(session, "ListCheckpoints")
    leave(session)


def test_each_who_carries_out_a_command_is_asked_whatever_becomes_of_the_others(running: CoordinatorProcess) -> None:
    session = join(settings(running), Who(JOB, "w0", 0, 1))

    async def fail(command: pb.Command) -> None:
        raise Refused("this one cannot")

    async def put(command: pb.Command) -> None:
        await session.call("CommitCheckpoint", attempt=command.attempt)

    session.on(pb.Command.KIND_PUT_MANIFEST, fail)
    session.on(pb.Command.KIND_PUT_MANIFEST, put)
    attempt = call(session, "BeginCheckpoint", step=1).attempt
    call(session, "AckCheckpoint", attempt=attempt, digest="d", part_bytes=1)
    status = pb.ATTEMPT_STATUS_COMMITTED
    eventually(lambda: call(session, "GetCheckpoint", attempt=attempt).checkpoint.status == status)
    leave(session)


def test_who_is_refused_for_now_is_told_why_and_not_that_nobody_answered(running: CoordinatorProcess) -> None:
    with Client(running.address, JOB) as other:
        other.register("another", rank=0, world_size=1)
        session = join(settings(running), Who(JOB, "w0", 0, 1))
        with pytest.raises(RpcError, match="rank 0 is held by worker 'another'"):
            call(session, "ListCheckpoints", within=1.0)
    leave(session)


FORKS = """
import os, sys, time
import strata.rpc.client
strata.rpc.client.load()
assert strata.rpc.client.is_fork_safe()
import grpc
channel = grpc.insecure_channel(sys.argv[1])
grpc.channel_ready_future(channel).result(20)
from strata import background
from strata.config import Config
from strata.session import Who, join, leave
sessions = [join(Config({"coordinator_url": sys.argv[1]}, {}), Who("forks", f"w{number}")) for number in range(4)]
for session in sessions:
    background.run(session.call("ListCheckpoints"))
for _ in range(int(sys.argv[2])):
    time.sleep(0.03)
    child = os.fork()
    if not child:
        time.sleep(0.05)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "a child was brought down"
for session in sessions:
    leave(session)
"""


def test_who_is_forked_beside_a_session_lives(running: CoordinatorProcess) -> None:
    """Also where somebody else uses grpcio, too."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    command = [sys.executable, "-W", "ignore", "-c", FORKS, running.address, "20"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
