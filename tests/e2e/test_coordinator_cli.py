"""The coordinator and its commands from outside: a real one, what they print, and how they end."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.coordinators import PATIENT, TOKEN
from tests.e2e.telling import STRATA, as_text, strata_here
from tests.e2e.telling import strata as strata_process
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator
from tests.until import until


@pytest.fixture
def client(guarded: CoordinatorProcess, job: str) -> Iterator[Client]:
    with Client(guarded.address, job, TOKEN) as made:
        yield made


def strata(process: CoordinatorProcess | None, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Within this process, as somebody who has the token of `process`."""
    with patch.dict(os.environ, (at(process) if process is not None else {}) | environment):
        return as_text(strata_here(*words))


def at(process: CoordinatorProcess) -> dict[str, str]:
    port = process.http.rpartition(":")[2]
    return {"COORDINATOR_URL": f"http://{process.address}", "STRATA_HTTP_PORT": port, "STRATA_TOKEN": TOKEN}


@contextmanager
def following(process: CoordinatorProcess, *words: str) -> "Iterator[tuple[subprocess.Popen[str], Iterator[Any]]]":
    """`strata events --follow` as a process of its own, which can be interrupted, and the events as they come."""
    command = [str(STRATA), "events", "--follow", "--json", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | at(process)
    ) as made:
        assert made.stdout is not None
        try:
            yield made, map(json.loads, made.stdout)
        finally:
            made.kill()


@contextmanager
def coordinator_here(command: list[str]) -> "Iterator[subprocess.Popen[str]]":
    """Started as a person does it. It ends with the test, also if that fails."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_banner_says_where_it_is_and_what_it_found(tmp_path: Path) -> None:
    command = [str(STRATA), "coordinator", "127.0.0.1:0", "--http-port", "0", "--state-dir", str(tmp_path / "state")]
    for found, ending in (("nothing yet: a fresh start", signal.SIGTERM), ("1 jobs, 1 workers", signal.SIGHUP)):
        with coordinator_here(command) as process:
            assert process.stdout is not None
            lines: list[str] = []
            while "SIGTERM" not in "".join(lines):
                lines.append(line := process.stdout.readline())
                assert line, "it ended"
            banner = "".join(lines)
            assert "Strata coordinator" in banner
            assert found in banner
            assert "no token" in banner
            address = next(line.split()[1] for line in lines if line.strip().startswith("gRPC"))
            with Client(address) as client:
                client.register("w0")
            process.send_signal(ending)
            _, told = process.communicate(timeout=60)
            assert process.returncode == 0
            assert "everything acknowledged is in the journal" in told


def test_under_nohup_it_outlives_its_terminal(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    command = ["nohup", str(STRATA), "coordinator", "127.0.0.1:0", "--http-port", "0", "--state-dir", state]
    with coordinator_here(command) as process:
        assert process.stdout is not None
        address = next(line.split()[1] for line in process.stdout if line.strip().startswith("gRPC"))
        process.send_signal(signal.SIGHUP)
        with Client(address) as client:
            client.register("w0")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_status_tells_each_job_in_a_sentence(guarded: CoordinatorProcess, client: Client) -> None:
    first = client.register("w0", rank=0, world_size=3)
    client.heartbeat(first, state="WORKER_STATE_TRAINING", step=3)
    told = strata(guarded, "status", "--job", client.job)
    assert told.returncode == 0, told.stderr
    assert f"job {client.job} waits for 2 of 3 workers: rank 1 (never came), rank 2 (never came)" in told.stdout
    assert "1 of 3 workers" in told.stdout
    as_json = json.loads(strata(guarded, "status", "--json").stdout)
    assert client.job in [each["job_id"] for each in as_json["jobs"]]


def test_workers_are_listed(guarded: CoordinatorProcess, client: Client) -> None:
    workers = client.world(3)
    client.heartbeat(workers[1], state="WORKER_STATE_TRAINING", step=42, epoch=2)
    client.call("Deregister", worker_id="w2", incarnation=workers[2].incarnation, reason="out of memory")
    told = strata(guarded, "workers", "--job", client.job).stdout
    rows = [line.split() for line in told.splitlines()]
    assert rows[0][:4] == ["job", "worker", "rank", "state"]
    assert rows[2][1:6] == ["w1", "1", "training", "42", "2"]
    assert "out of memory" in told
    listed = json.loads(strata(guarded, "workers", "--job", client.job, "--json").stdout)
    assert [(each["worker_id"], each["state"]) for each in listed] == [
        ("w0", "initializing"),
        ("w1", "training"),
        ("w2", "left"),
    ]


def test_barriers_name_who_is_missing(guarded: CoordinatorProcess, client: Client) -> None:
    first, second = client.world(2)
    fields: dict[str, Any] = {"barrier_id": "epoch_9", "arrival": 1, "expected_participants": 2}
    wait = client.start("WaitBarrier", worker_id="w0", incarnation=first.incarnation, **fields)
    shown = partial(strata, guarded, "barriers", "--job", client.job)
    told = until(lambda: told if "1 of 2" in (told := shown().stdout) else "")
    assert "epoch_9" in told
    assert "w1" in told
    client.call("WaitBarrier", worker_id="w1", incarnation=second.incarnation, **fields)
    client.result(wait)
    told = shown().stdout
    assert "nobody waits" in told
    assert "released" in told


def test_events_can_be_followed(guarded: CoordinatorProcess, client: Client) -> None:
    client.register("w0")
    told = strata(guarded, "events", "--job", client.job)
    assert "w0 joined" in told.stdout
    with following(guarded, "--job", client.job) as (process, events):
        assert [next(events)["kind"] for _ in range(3)] == ["job_opened", "world_declared", "worker_joined"]
        client.register("w1")
        came = next(each for each in events if each["kind"] == "worker_joined")  # the job may be renamed before
        assert came["worker_id"] == "w1"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "Traceback" not in said


def test_following_goes_on_over_a_restart(own_coordinator: CoordinatorProcess, job: str) -> None:
    with Client(own_coordinator.address, job) as client, ExitStack() as stack:
        client.register("w0")
        _, events = stack.enter_context(following(own_coordinator, "--limit", "1"))
        assert next(events)["worker_id"] == "w0"
        own_coordinator.kill()
        own_coordinator.start()
        client.register("w1")
        came = [next(events) for _ in range(2)]
        assert [(each["kind"], each["worker_id"]) for each in came] == [("term_started", ""), ("worker_joined", "w1")]


def test_an_operator_acts_on_a_job(guarded: CoordinatorProcess, client: Client) -> None:
    workers = client.world(2)
    told = strata(guarded, "job", "checkpoint", client.job, "--reason", "maintenance")
    assert told.returncode == 0, told.stderr
    assert "will save" in told.stdout
    assert strata(guarded, "job", "drain", client.job, "w1").returncode == 0
    assert strata(guarded, "job", "stop", client.job, "--without-checkpoint").returncode == 0
    kinds = {command.kind for command in client.heartbeat(workers[1], step=1).commands}
    assert len(kinds) == 2
    told = strata(guarded, "job", "drain", client.job, "w9")
    assert told.returncode == 2
    assert told.stderr.startswith("error: no live worker 'w9'")


def test_what_workers_wrote_moves_no_cursor_and_forges_no_line(guarded: CoordinatorProcess, client: Client) -> None:
    who = client.register("w0", metadata={"log": "1\x1b[2J"})
    client.register("w1")
    client.call(
        "Deregister", worker_id="w0", incarnation=who.incarnation, reason="bye\n20:00:00 ERROR forged \x1b]0;x\x07"
    )
    for words in (["events"], ["workers"], ["status"]):
        told = strata(guarded, *words, "--job", client.job)
        assert told.returncode == 0, told.stderr
        assert "\x1b" not in told.stdout
        assert "\x07" not in told.stdout
        assert not any(line.startswith("20:00:00 ERROR") for line in told.stdout.splitlines())
    assert "\x1b" not in guarded.log.read_text("utf-8")
    raw = json.loads(strata(guarded, "workers", "--job", client.job, "--json").stdout)
    assert {"log": "1\x1b[2J"} in [each["metadata"] for each in raw]


def test_status_shows_the_checkpoint_that_all_would_go_back_to(guarded: CoordinatorProcess, client: Client) -> None:
    who = client.register("w0", rank=0, world_size=1)
    fields = {"worker_id": "w0", "incarnation": who.incarnation}
    for step in (10, 20):
        attempt = client.call("BeginCheckpoint", **fields, step=step).attempt
        client.call("AckCheckpoint", **fields, attempt=attempt, digest="d", part_bytes=5_000_000)
        client.call("CommitCheckpoint", **fields, attempt=attempt)
    assert "latest checkpoint: step 20 (5.0 MB" in strata(guarded, "status").stdout
    client.call("RollBack", step=10, generation=who.generation)
    assert "latest checkpoint: step 10" in strata(guarded, "status", "--job", client.job).stdout


def test_of_several_addresses_the_first_that_answers_is_asked(guarded: CoordinatorProcess) -> None:
    told = strata(guarded, "status", COORDINATOR_URL=f"127.0.0.2:1,{guarded.address}")
    assert told.returncode == 0, told.stderr
    told = strata(guarded, "status", COORDINATOR_URL="a b")
    assert told.returncode == 2
    assert len(told.stderr.splitlines()) == 1


def test_what_cannot_be_reached_or_is_refused_is_told_in_one_line(guarded: CoordinatorProcess) -> None:
    told = strata(None, "status", COORDINATOR_URL="127.0.0.1:1", STRATA_HTTP_PORT="1")
    assert told.returncode == 2
    assert told.stderr.startswith("error: cannot reach the coordinator's HTTP API at http://127.0.0.1:1")
    assert len(told.stderr.splitlines()) == 1
    told = strata(guarded, "status", STRATA_TOKEN="a-wrong-token")
    assert told.returncode == 2
    assert "the token is not the right one" in told.stderr
    assert "a-wrong-token" not in told.stderr
    told = strata(guarded, "workers", "--job", "nothing")
    assert told.returncode == 2
    assert "no job 'nothing'" in told.stderr
    told = strata(None, "status", COORDINATOR_URL="ftp://x")
    assert told.returncode == 2
    assert "ftp://" in told.stderr


def test_config_says_what_is_in_force_and_hides_secrets(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('job_id = "from-file"\n[coordinator]\nlease_seconds = 30\n')
    told = strata(None, "config", "--config", str(file), STRATA_TOKEN="do-not-show-me", RANK="3")
    assert told.returncode == 0
    assert "do-not-show-me" not in told.stdout
    for words in ("from-file", "environment: RANK", "environment: STRATA_TOKEN", "********", "default"):
        assert words in told.stdout
    rows = {row["name"]: row for row in json.loads(strata(None, "config", "--json", RANK="3").stdout)}
    assert rows["rank"] == {"name": "rank", "value": "3", "source": "environment: RANK"}


def test_the_state_is_shown_saved_and_put_back(tmp_path: Path) -> None:
    with coordinator(tmp_path, "--no-http", *PATIENT) as process, Client(process.address, "job") as client:
        client.register("w0", metadata={"zone": "b"})
        state = ["--state-dir", str(process.state_dir)]
        told = strata(None, "state", "show", *state)
        assert told.returncode == 0, told.stderr
        assert "job job: 1 workers" in told.stdout
        whole = json.loads(strata(None, "state", "show", *state, "--job", "job").stdout)
        assert whole["world"]["members"]["w0"]["metadata"] == {"zone": "b"}
        assert strata(None, "state", "backup", str(tmp_path / "backup"), *state).returncode == 0
        again = strata(None, "state", "backup", str(tmp_path / "backup"), *state)
        assert again.returncode == 2
        assert "never overwritten" in again.stderr
        second = as_text(strata_process("coordinator", "127.0.0.1:0", "--no-http", *state))
        assert second.returncode == 2
        assert f"another coordinator (process {process.pid})" in second.stderr
        client.register("w1")
    told = strata(None, "state", "restore", str(tmp_path / "backup"), "--state-dir", str(tmp_path / "new"))
    assert told.returncode == 0, told.stderr
    assert "job job: 1 workers" in strata(None, "state", "show", "--state-dir", str(tmp_path / "new")).stdout
    assert strata(None, "state", "show", "--state-dir", str(tmp_path / "nowhere")).returncode == 2
    named = strata(None, "state", "show", STRATA_COORDINATOR_STATE_DIR=str(tmp_path / "new"))
    assert "job job: 1 workers" in named.stdout, "the same settings as the coordinator's"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["coordinator", "nonsense:port:1"], "nonsense"),
        (["coordinator", "127.0.0.1:-1"], "127.0.0.1:-1"),
        (["coordinator", "http://127.0.0.1:21011"], "give host:port"),
        (["coordinator", "--lease-seconds", "inf"], "lease_seconds"),
        (["coordinator", "127.0.0.1:99999"], "99999"),
        (["coordinator", "--rpc", "http"], "strata, grpcio"),
        (["coordinator", "--log-format", "xml"], "text, json"),
        (["coordinator", "--lease-seconds", "1"], "lease_seconds"),
        (["coordinator", "--tls-key", "/nowhere"], "certificate and its key"),
        (["coordinator", "--token-file", "/nowhere"], "cannot read the tokens"),
        (["coordinator", "--config", "/nowhere.toml"], "no configuration file"),
    ],
)
def test_a_coordinator_that_cannot_start_says_why_in_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    told = strata(None, *words, "--state-dir", str(tmp_path / "state"), STRATA_HTTP_PORT="0")
    assert told.returncode == 2
    assert message in told.stderr
    assert told.stderr.startswith("error: ")
    assert len(told.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_told(guarded: CoordinatorProcess, tmp_path: Path) -> None:
    for words in (
        [guarded.address, "--http-port", "0"],
        ["127.0.0.1:0", "--http-port", guarded.http.rpartition(":")[2]],
    ):
        told = as_text(strata_process("coordinator", *words, "--state-dir", str(tmp_path / "state")))
        assert told.returncode == 2
        assert "Address already in use" in told.stderr or "in use" in told.stderr.lower()


def test_a_journal_that_lost_its_end_is_not_opened_and_goes_on_without_it_when_told_to(tmp_path: Path) -> None:
    with coordinator(tmp_path, "--no-http", *PATIENT) as process:
        with Client(process.address, "job") as client:
            for number in range(3):
                client.register(f"w{number}")
        process.kill()
        state = ["--state-dir", str(process.state_dir)]
        log = process.state_dir / "journal.sqlite3-wal"
        data = bytearray(log.read_bytes())
        last = data.rindex(b"WorkerJoined")
        data[last] ^= 1
        log.write_bytes(data)
        refused = as_text(strata_process("coordinator", "127.0.0.1:0", "--no-http", *state))
        assert refused.returncode == 2
        assert " records were acknowledged, and " in refused.stderr
        assert " of them, from index " in refused.stderr
        assert "strata state salvage" in refused.stderr
        assert strata(None, "state", "show", *state).returncode == 2
        asked = strata(None, "state", "salvage", *state)
        assert (asked.returncode, "nothing was changed" in asked.stdout) == (0, True), asked.stderr
        assert log.read_bytes() == data
        done = strata(None, "state", "salvage", "--yes", *state)
        assert (done.returncode, "damaged-1" in done.stdout) == (0, True), done.stderr
        assert "job job: 2 workers" in strata(None, "state", "show", *state).stdout
        process.start()
        assert process.stop() == 0
