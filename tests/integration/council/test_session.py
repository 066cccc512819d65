"""A worker's session with a real coordinator: through restarts of either side, silence, and another of its name."""

import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from strata import background
from strata.config import Config
from strata.errors import Expired, InvalidInput, Refused, Superseded
from strata.rpc import RpcError
from strata.session import Session, Who, is_silence, join, leave
from strata.v1 import coordinator_pb2 as pb
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.until import until


def settings(running: CoordinatorProcess) -> Config:
    return Config({"coordinator_url": running.address}, {})


def call(session: Session, method: str, **fields: Any) -> Any:
    return background.run(session.call(method, **fields))


def workers(running: CoordinatorProcess, job: str) -> dict[str, str]:
    found = running.get(f"/api/v1/workers?job={job}")["items"]
    return {each["worker_id"]: each["state"] for each in found}


def test_it_is_in_the_job_until_it_leaves(running: CoordinatorProcess, job: str) -> None:
    session = join(settings(running), Who(job, "w0", 0, 1))
    call(session, "ListCheckpoints")
    assert workers(running, job)["w0"] not in ("failed", "left")
    leave(session)
    assert workers(running, job)["w0"] == "left"
    with pytest.raises(Expired, match="has left"):
        call(session, "ListCheckpoints")


def test_a_token_that_was_never_right_is_told_at_once(guarded: CoordinatorProcess, job: str) -> None:
    wrong = Config({"coordinator_url": guarded.address, "token": "a-wrong-token"}, {})
    session = join(wrong, Who(job, "w0", 0, 1))
    for _ in range(2):
        with pytest.raises(RpcError, match="UNAUTHENTICATED") as refusal:
            call(session, "ListCheckpoints", within=60)
        assert not is_silence(refusal.value)
    leave(session)


def test_who_does_not_answer_is_named() -> None:
    with socket.socket() as closed:  # a port that nobody listens at
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        session = join(Config({"coordinator_url": address}, {}), Who("job", "w0", 0, 1))
        with pytest.raises(RpcError, match=f"the coordinator at {address} did not answer ListCheckpoints"):
            call(session, "ListCheckpoints", within=0.5)
        leave(session)


def test_a_process_has_one_session_for_all_who_need_it(running: CoordinatorProcess, job: str) -> None:
    who = Who(job, "w0", 0, 1)
    first, second = join(settings(running), who), join(settings(running), who)
    assert first is second
    with pytest.raises(InvalidInput, match="already"):
        join(settings(running), who._replace(rank=1, world_size=2))
    leave(first)
    call(second, "ListCheckpoints")
    leave(second)
    assert join(settings(running), who) is not first
    leave(join(settings(running), who))


def test_it_goes_on_when_the_coordinator_comes_back(own_coordinator: CoordinatorProcess, job: str) -> None:
    session = join(settings(own_coordinator), Who(job, "w0", 0, 1))
    call(session, "ListCheckpoints")
    incarnation = session.registered.incarnation if session.registered else 0
    own_coordinator.kill()
    with pytest.raises(RpcError) as silence:
        call(session, "ListCheckpoints", within=0.5)
    assert is_silence(silence.value)
    own_coordinator.start()
    call(session, "ListCheckpoints")
    assert session.registered is not None
    assert session.registered.incarnation == incarnation
    leave(session)


def test_one_whose_name_another_process_took_is_told_so_for_good(running: CoordinatorProcess, job: str) -> None:
    session = join(settings(running), Who(job, "w0", 0, 1))
    call(session, "ListCheckpoints")
    with Client(running.address, job) as other:
        other.register("w0", rank=0, world_size=1)
        with pytest.raises(Superseded):
            call(session, "Recover")
        until(lambda: session.registered is None)
        for _ in range(2):
            with pytest.raises(Superseded, match="another process took its name"):
                call(session, "ListCheckpoints")
    leave(session)


def test_a_rank_that_cannot_be_is_told_to_all_who_call(running: CoordinatorProcess, job: str) -> None:
    session = join(settings(running), Who(job, "w0", 3, 2))
    with pytest.raises(Refused, match="ranks 0 to 1"):
        call(session, "ListCheckpoints")
    leave(session)


def test_a_stopped_coordinator_is_silence_and_not_a_failure(own_coordinator: CoordinatorProcess, job: str) -> None:
    session = join(settings(own_coordinator), Who(job, "w0", 0, 1))
    call(session, "ListCheckpoints")
    own_coordinator.signal(signal.SIGSTOP)
    try:
        with pytest.raises(RpcError) as silence:
            call(session, "ListCheckpoints", within=0.5)
        assert is_silence(silence.value)
    finally:
        own_coordinator.signal(signal.SIGCONT)
    call(session, "ListCheckpoints")
    leave(session)


def test_each_who_carries_out_a_command_is_asked_whatever_becomes_of_the_others(
    running: CoordinatorProcess, job: str
) -> None:
    session = join(settings(running), Who(job, "w0", 0, 1))

    async def fail(command: pb.Command) -> None:
        raise Refused("this one cannot")

    async def put(command: pb.Command) -> None:
        await session.call("CommitCheckpoint", attempt=command.attempt)

    session.on(pb.Command.KIND_PUT_MANIFEST, fail)
    session.on(pb.Command.KIND_PUT_MANIFEST, put)
    attempt = call(session, "BeginCheckpoint", step=1).attempt
    call(session, "AckCheckpoint", attempt=attempt, digest="d", part_bytes=1)
    status = pb.ATTEMPT_STATUS_COMMITTED
    until(lambda: call(session, "GetCheckpoint", attempt=attempt).checkpoint.status == status)
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
