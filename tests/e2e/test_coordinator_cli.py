"""The coordinator and its commands from outside: real processes, what they print, and how they end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

STRATA = Path(sys.executable).with_name("strata")
TOKEN = "command-line-token"
PATIENT = ("--lease-seconds", "600")
"""Workers that register once are there until the test is over, however slow the machine."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    with coordinator(tmp_path_factory.mktemp("cli"), *PATIENT, environment={"STRATA_TOKEN": TOKEN}) as process:
        yield process


@pytest.fixture
def job(running: CoordinatorProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(running.address, request.node.name.replace("_", "-")[:60], TOKEN) as client:
        yield client


def strata(process: CoordinatorProcess | None, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "COORDINATOR"))}
    if process is not None:
        port = process.http.rpartition(":")[2]
        clean |= {"COORDINATOR_URL": f"http://{process.address}", "STRATA_HTTP_PORT": port, "STRATA_TOKEN": TOKEN}
    return subprocess.run(
        [STRATA, *words], capture_output=True, text=True, check=False, timeout=60, env=clean | environment
    )


def test_the_banner_says_where_it_is_and_what_it_found(tmp_path: Path) -> None:
    command = [STRATA, "coordinator", "127.0.0.1:0", "--http-port", "0", "--state-dir", str(tmp_path / "state")]
    for found, ending in (("nothing yet: a fresh start", signal.SIGTERM), ("1 jobs, 1 workers", signal.SIGHUP)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines: list[str] = []
        while "SIGTERM" not in "".join(lines):
            lines.append(process.stdout.readline())
        banner = "".join(lines)
        assert "Strata coordinator" in banner
        assert found in banner
        assert "no token" in banner
        address = next(line.split()[1] for line in lines if line.strip().startswith("gRPC"))
        with Client(address) as client:
            client.register("w0")
        process.send_signal(ending)
        _, told = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "everything acknowledged is in the journal" in told


def test_status_tells_each_job_in_a_sentence(running: CoordinatorProcess, job: Client) -> None:
    first = job.register("w0", rank=0, world_size=3)
    job.heartbeat(first, state="WORKER_STATE_TRAINING", step=3)
    told = strata(running, "status", "--job", job.job)
    assert told.returncode == 0, told.stderr
    assert f"job {job.job} waits for 2 of 3 workers: rank 1 (never came), rank 2 (never came)" in told.stdout
    assert "1 of 3 workers" in told.stdout
    as_json = json.loads(strata(running, "status", "--json").stdout)
    assert job.job in [each["job_id"] for each in as_json["jobs"]]


def test_workers_are_listed(running: CoordinatorProcess, job: Client) -> None:
    workers = job.world(3)
    job.heartbeat(workers[1], state="WORKER_STATE_TRAINING", step=42, epoch=2)
    job.call("Deregister", worker_id="w2", incarnation=workers[2].incarnation, reason="out of memory")
    told = strata(running, "workers", "--job", job.job).stdout
    rows = [line.split() for line in told.splitlines()]
    assert rows[0][:4] == ["job", "worker", "rank", "state"]
    assert rows[2][1:6] == ["w1", "1", "training", "42", "2"]
    assert "out of memory" in told
    listed = json.loads(strata(running, "workers", "--job", job.job, "--json").stdout)
    assert [(each["worker_id"], each["state"]) for each in listed] == [
        ("w0", "initializing"),
        ("w1", "training"),
        ("w2", "left"),
    ]


def test_barriers_name_who_is_missing(running: CoordinatorProcess, job: Client) -> None:
    first, second = job.world(2)
    fields: dict[str, Any] = {"barrier_id": "epoch_9", "arrival": 1, "expected_participants": 2}
    wait = job.start("WaitBarrier", worker_id="w0", incarnation=first.incarnation, **fields)
    time.sleep(0.2)
    told = strata(running, "barriers", "--job", job.job).stdout
    assert "epoch_9" in told
    assert "1 of 2" in told
    assert "w1" in told
    job.call("WaitBarrier", worker_id="w1", incarnation=second.incarnation, **fields)
    job.result(wait)
    told = strata(running, "barriers", "--job", job.job).stdout
    assert "nobody waits" in told
    assert "released" in told


def test_events_can_be_followed(running: CoordinatorProcess, job: Client) -> None:
    job.register("w0")
    told = strata(running, "events", "--job", job.job)
    assert "w0 joined" in told.stdout
    port = running.http.rpartition(":")[2]
    environment = os.environ | {"COORDINATOR_URL": running.address, "STRATA_HTTP_PORT": port, "STRATA_TOKEN": TOKEN}
    following = subprocess.Popen(
        [STRATA, "events", "--job", job.job, "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert following.stdout is not None
    first = [json.loads(following.stdout.readline())["kind"] for _ in range(3)]
    assert first == ["job_opened", "world_declared", "worker_joined"]
    threading.Timer(0.5, lambda: job.register("w1")).start()
    lines = iter(lambda: json.loads(following.stdout.readline()), None)
    came = next(each for each in lines if each["kind"] == "worker_joined")  # how the job is called may change before
    assert came["worker_id"] == "w1"
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=20)
    assert following.returncode == 130
    assert "Traceback" not in said


def test_following_goes_on_over_a_restart(tmp_path: Path) -> None:
    with coordinator(tmp_path, *PATIENT) as process, Client(process.address, "job") as client:
        client.register("w0")
        port = process.http.rpartition(":")[2]
        environment = os.environ | {"COORDINATOR_URL": process.address, "STRATA_HTTP_PORT": port}
        following = subprocess.Popen(
            [STRATA, "events", "--follow", "--json", "--limit", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["worker_id"] == "w0"
        time.sleep(1.0)
        process.kill()
        process.start()
        client.register("w1")
        kinds = [json.loads(following.stdout.readline()) for _ in range(2)]
        assert [(each["kind"], each["worker_id"]) for each in kinds] == [("term_started", ""), ("worker_joined", "w1")]
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=20)


def test_an_operator_acts_on_a_job(running: CoordinatorProcess, job: Client) -> None:
    workers = job.world(2)
    told = strata(running, "job", "checkpoint", job.job, "--reason", "maintenance")
    assert told.returncode == 0, told.stderr
    assert "will save" in told.stdout
    assert strata(running, "job", "drain", job.job, "w1").returncode == 0
    assert strata(running, "job", "stop", job.job, "--without-checkpoint").returncode == 0
    kinds = {command.kind for command in job.heartbeat(workers[1], step=1).commands}
    assert len(kinds) == 2
    told = strata(running, "job", "drain", job.job, "w9")
    assert told.returncode == 2
    assert told.stderr.startswith("error: no live worker 'w9'")


def test_what_workers_wrote_moves_no_cursor_and_forges_no_line(running: CoordinatorProcess, job: Client) -> None:
    who = job.register("w0", ip="1\x1b[2J")
    job.register("w1")
    job.call(
        "Deregister", worker_id="w0", incarnation=who.incarnation, reason="bye\n20:00:00 ERROR forged \x1b]0;x\x07"
    )
    for words in (["events"], ["workers"], ["status"]):
        told = strata(running, *words, "--job", job.job)
        assert told.returncode == 0, told.stderr
        assert "\x1b" not in told.stdout
        assert "\x07" not in told.stdout
        assert not any(line.startswith("20:00:00 ERROR") for line in told.stdout.splitlines())
    assert "\x1b" not in running.log.read_text()
    raw = json.loads(strata(running, "workers", "--job", job.job, "--json").stdout)
    assert any(each["address"].startswith("1\x1b[2J") for each in raw)


def test_status_shows_the_checkpoint_that_everybody_would_go_back_to(running: CoordinatorProcess, job: Client) -> None:
    who = job.register("w0", rank=0, world_size=1)
    fields = {"worker_id": "w0", "incarnation": who.incarnation}
    for step in (10, 20):
        attempt = job.call("BeginCheckpoint", **fields, step=step).attempt
        job.call("AckCheckpoint", **fields, attempt=attempt, digest="d", part_bytes=5_000_000)
        job.call("CommitCheckpoint", **fields, attempt=attempt)
    assert "latest checkpoint: step 20 (5.0 MB" in strata(running, "status").stdout
    job.call("RollBack", step=10, generation=who.generation)
    assert "latest checkpoint: step 10" in strata(running, "status", "--job", job.job).stdout


def test_of_several_addresses_the_first_that_answers_is_asked(running: CoordinatorProcess) -> None:
    told = strata(running, "status", COORDINATOR_URL=f"127.0.0.2:1,{running.address}")
    assert told.returncode == 0, told.stderr
    told = strata(running, "status", COORDINATOR_URL="a b")
    assert told.returncode == 2
    assert len(told.stderr.splitlines()) == 1


def test_what_cannot_be_reached_or_is_refused_is_told_in_one_line(running: CoordinatorProcess) -> None:
    told = strata(None, "status", COORDINATOR_URL="127.0.0.1:1", STRATA_HTTP_PORT="1")
    assert told.returncode == 2
    assert told.stderr.startswith("error: cannot reach the coordinator's HTTP API at http://127.0.0.1:1")
    assert len(told.stderr.splitlines()) == 1
    told = strata(running, "status", STRATA_TOKEN="a-wrong-token")
    assert told.returncode == 2
    assert "the token is not the right one" in told.stderr
    assert "a-wrong-token" not in told.stderr
    told = strata(running, "workers", "--job", "nothing")
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
        second = strata(None, "coordinator", "127.0.0.1:0", "--no-http", *state)
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


def test_a_port_that_is_taken_is_told(running: CoordinatorProcess, tmp_path: Path) -> None:
    for words in (
        [running.address, "--http-port", "0"],
        ["127.0.0.1:0", "--http-port", running.http.rpartition(":")[2]],
    ):
        told = strata(None, "coordinator", *words, "--state-dir", str(tmp_path / "state"))
        assert told.returncode == 2
        assert "Address already in use" in told.stderr or "in use" in told.stderr.lower()
