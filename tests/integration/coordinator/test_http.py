"""The HTTP API: what it shows, the live stream, the actions, and that no request of any shape harms it."""

import http.client
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.coordinators import TOKEN
from tests.servers.coordinator import Client, CoordinatorProcess, post
from tests.until import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def jobs(guarded: CoordinatorProcess, job: str) -> Iterator[Client]:
    with Client(guarded.address, job, TOKEN) as client:
        yield client


def get(process: CoordinatorProcess, path: str) -> Any:
    return process.get(path, TOKEN)


def status_of(url: str, headers: dict[str, str] | None = None, method: str = "GET") -> int:
    request = urllib.request.Request(url, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_dashboard_has_everything_in_one_answer(guarded: CoordinatorProcess, jobs: Client) -> None:
    workers = jobs.world(2)
    jobs.call("RegisterDataset", dataset_id="images", total_samples=100, shard_size=10, path="s3://me:pw@bucket/x")
    jobs.heartbeat(workers[0], state="WORKER_STATE_TRAINING", step=7, epoch=1, resources={"gpu": 0.5})
    told = get(guarded, f"/api/dashboard?job={jobs.job}")
    assert set(told) >= {"coordinator", "workers", "datasets", "checkpoints", "barriers", "metrics", "events", "jobs"}
    assert set(told["metrics"]) >= {"checkpoint_mb_per_s", "requests_per_s", "barrier_p99_ms"}
    first = told["workers"][0]
    assert (first["worker_id"], first["state"], first["step"], first["epoch"]) == ("w0", "training", 7, 1)
    assert first["resources"] == {"gpu": 0.5}
    assert sum(worker["shards"]["images"] for worker in told["workers"]) == 10
    assert told["datasets"][0]["shards_pending"] == 10
    assert told["jobs"][0]["explanation"].startswith(f"job {jobs.job} ")
    assert "pw" not in json.dumps(told), "credentials in a path are not shown"
    assert get(guarded, f"/api/v1/dashboard?job={jobs.job}")["datasets"] == told["datasets"]


def test_each_part_has_its_own_paged_endpoint(guarded: CoordinatorProcess, jobs: Client) -> None:
    jobs.world(5)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = get(guarded, f"/api/v1/workers?job={jobs.job}&limit=2&cursor={cursor}")
        seen += [worker["worker_id"] for worker in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ["w0", "w1", "w2", "w3", "w4"]
    for part in ("jobs", "datasets", "checkpoints", "events"):
        assert "items" in get(guarded, f"/api/v1/{part}")
    assert set(get(guarded, "/api/v1/barriers")) == {"open", "past"}
    assert get(guarded, "/api/v1/coordinator")["term"] == 1
    newest = get(guarded, f"/api/v1/events?job={jobs.job}&limit=1")["items"][0]
    assert newest["worker_id"] == "w4"


def test_an_open_barrier_names_who_is_missing_and_a_past_one_who_came_last(
    guarded: CoordinatorProcess, jobs: Client
) -> None:
    workers = jobs.world(2)
    waits = []
    for who in workers:
        waits.append(
            jobs.start(
                "WaitBarrier",
                worker_id=who.worker_id,
                incarnation=who.incarnation,
                barrier_id="epoch_1",
                arrival=1,
                expected_participants=2,
            )
        )
        if who is workers[0]:
            (waiting,) = until(lambda: get(guarded, f"/api/v1/barriers?job={jobs.job}")["open"])
            assert (waiting["barrier_id"], waiting["arrived"], waiting["missing"]) == ("epoch_1", 1, ["w1"])
    for wait in waits:
        jobs.result(wait)
    told = get(guarded, f"/api/v1/barriers?job={jobs.job}")
    assert not told["open"]
    assert (told["past"][0]["released"], told["past"][0]["last"]) == (True, "w1")
    assert get(guarded, "/api/v1/metrics")["barrier_p99_ms"] > 0


def test_what_is_not_there_or_makes_no_sense_is_told_in_words(guarded: CoordinatorProcess) -> None:
    base = f"http://{guarded.http}"
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for path, status in (
        ("/api/v1/workers?job=nothing", 404),
        ("/api/v1/workers?job=..%2F..", 422),
        ("/api/v1/workers?limit=0", 422),
        ("/api/v1/workers?limit=many", 422),
        ("/api/v1/workers?cursor=zzz", 404),
        ("/nothing", 404),
        ("/api/v1/stream?job=nothing", 404),
    ):
        assert status_of(base + path, bearer) == status, path
    code, told = post(f"{base}/api/v1/jobs/x/stop", {"reason": 3}, TOKEN)
    assert (code, told["code"]) == (422, "invalid_input")
    code, told = post(f"{base}/api/v1/jobs/x/stop", {"why": "x"}, TOKEN)
    assert code == 422
    assert "content-type" not in told["message"]
    as_curl_does = {"content-type": "application/x-www-form-urlencoded"}
    request = urllib.request.Request(f"{base}/api/v1/jobs/x/stop", b'{"reason": "x"}', bearer | as_curl_does)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    with refused.value as answer:
        assert "content-type: application/json" in json.loads(answer.read())["message"]
    code, told = post(f"{base}/api/v1/jobs/x/stop", {}, TOKEN)
    assert (code, told["code"]) == (404, "not_found")


def test_actions_reach_the_workers(guarded: CoordinatorProcess, jobs: Client) -> None:
    base = f"http://{guarded.http}/api/v1/jobs/{jobs.job}"
    workers = jobs.world(2)
    code, told = post(f"{base}/checkpoint", {"reason": "maintenance"}, TOKEN)
    assert (code, told["step"]) == (200, -1)
    assert post(f"{base}/checkpoint", {}, TOKEN)[1]["request"] == told["request"]
    (command,) = jobs.heartbeat(workers[0], step=3).commands
    assert command.reason == "maintenance"
    assert post(f"{base}/workers/w1/drain", {"reason": "bad gpu"}, TOKEN)[0] == 200
    assert post(f"{base}/workers/w7/drain", {}, TOKEN)[0] == 404
    assert post(f"{base}/stop", {"reason": "budget", "without_checkpoint": True}, TOKEN)[0] == 200
    kinds = [command.reason for command in jobs.heartbeat(workers[1], step=3).commands]
    assert any("bad gpu" in reason for reason in kinds)
    for who in workers:
        jobs.call("Deregister", worker_id=who.worker_id, incarnation=who.incarnation)
    code, told = post(f"{base}/checkpoint", {}, TOKEN)
    assert (code, told["code"]) == (409, "refused")


def test_the_body_of_an_action_may_be_left_out_and_wrong_methods_are_told(
    guarded: CoordinatorProcess, jobs: Client
) -> None:
    jobs.world(1)
    base = f"http://{guarded.http}"
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for method, path, status in (
        ("POST", f"/api/v1/jobs/{jobs.job}/checkpoint", 200),
        ("DELETE", "/api/dashboard", 405),
        ("PUT", "/healthz", 405),
        ("HEAD", "/healthz", 200),
        ("HEAD", "/readyz", 200),
        ("GET", "/api/v1/events?job=nothing", 404),
    ):
        assert status_of(base + path, bearer, method) == status, (method, path)


def test_a_list_that_is_cut_is_said_to_be(guarded: CoordinatorProcess, jobs: Client) -> None:
    jobs.world(3)
    assert get(guarded, f"/api/dashboard?job={jobs.job}&limit=2")["cut"] == ["workers"]
    assert get(guarded, f"/api/dashboard?job={jobs.job}")["cut"] == []


def test_everything_but_health_wants_the_token(guarded: CoordinatorProcess) -> None:
    base = f"http://{guarded.http}"
    for path in ("/healthz", "/readyz"):
        assert status_of(base + path) == 200
    wrong = {"authorization": "Bearer something-else"}
    for path in ("/api/dashboard", "/api/v1/workers", "/api/v1/stream", "/metrics", "/openapi.json", "/nothing"):
        assert status_of(base + path) == 401, path
        assert status_of(base + path, wrong) == 401, path
    assert post(f"{base}/api/v1/jobs/x/stop", {})[0] == 401


def test_actions_need_a_token_even_where_reading_does_not(running: CoordinatorProcess) -> None:
    code, told = post(f"http://{running.http}/api/v1/jobs/x/stop", {})
    assert (code, told["code"]) == (403, "no_token")
    assert status_of(f"http://{running.http}/api/dashboard") == 200


def test_without_a_token_a_page_under_another_name_is_not_served(running: CoordinatorProcess) -> None:
    """A page whose name was made to lead here must not read anything."""
    assert status_of(f"http://{running.http}/api/dashboard", {"host": "evil.example"}) == 400
    assert status_of(f"http://{running.http}/api/dashboard", {"host": "localhost"}) == 200


def test_metrics_are_what_prometheus_reads(guarded: CoordinatorProcess, jobs: Client) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    (only,) = jobs.world(1)
    jobs.heartbeat(only, state="WORKER_STATE_TRAINING")
    jobs.call("RegisterDataset", dataset_id="images", total_samples=100, shard_size=10)
    attempt = jobs.call("BeginCheckpoint", worker_id="w0", incarnation=only.incarnation, step=1).attempt
    fields = {"worker_id": "w0", "incarnation": only.incarnation, "attempt": attempt}
    jobs.call("AckCheckpoint", **fields, digest="d", part_bytes=5_000_000)
    jobs.call("CommitCheckpoint", **fields)
    request = urllib.request.Request(f"http://{guarded.http}/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples["strata_requests_total", "Heartbeat", "OK"] >= 1
    assert samples["strata_request_seconds_count", "Heartbeat"] >= 1
    assert samples["strata_workers", jobs.job, "training"] == 1
    assert samples["strata_shards_pending", "images", jobs.job] == 10
    assert samples[("strata_checkpoint_bytes_total",)] >= 5_000_000
    assert samples[("strata_checkpoint_seconds_count",)] >= 1
    assert samples[("strata_journal_lag_records",)] >= 0
    for name in ("strata_barrier_wait_seconds", "strata_barrier_release_seconds", "strata_workers_stalled"):
        assert name in families


class Sse:
    """A stream of server-sent events, read by hand."""

    def __init__(self, process: CoordinatorProcess, path: str, last: str = "") -> None:
        host, _, port = process.http.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=20)
        headers = {"authorization": f"Bearer {TOKEN}"} | ({"last-event-id": last} if last else {})
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def next(self, kind: str = "") -> tuple[str, str, Any]:
        """The id, kind and content of the next one, of this kind if one is given."""
        told = {"id": "", "event": ""}
        while True:
            name, _, value = self._answer.readline().decode().rstrip("\n").partition(": ")
            if name == "data":
                if kind in ("", told["event"]):
                    return told["id"], told["event"], json.loads(value)
                told = {"id": "", "event": ""}
            elif name:
                told[name] = value

    def close(self) -> None:
        self._connection.close()


def test_the_live_stream_begins_with_everything_and_goes_on_with_what_happens(
    guarded: CoordinatorProcess, jobs: Client
) -> None:
    jobs.register("w0")
    stream = Sse(guarded, f"/api/v1/stream?job={jobs.job}")
    _, kind, told = stream.next()
    assert kind == "snapshot"
    assert [worker["worker_id"] for worker in told["workers"]] == ["w0"]
    jobs.register("w1")
    last, _, told = stream.next("event")
    assert told["worker_id"] == "w1"
    assert last == told["id"]
    _, _, pulse = stream.next("pulse")
    assert pulse["jobs"][0]["job_id"] == jobs.job
    assert "requests_per_s" in pulse["metrics"]
    stream.close()
    jobs.register("w2")
    resumed = Sse(guarded, f"/api/v1/stream?job={jobs.job}", last)
    _, kind, told = resumed.next()
    assert (kind, told["worker_id"]) == ("event", "w2"), "nothing is missed and nothing told twice"
    resumed.close()
    for unknown in ("9-999999", "nonsense"):
        stream = Sse(guarded, f"/api/v1/stream?job={jobs.job}", unknown)
        assert stream.next()[1] == "snapshot"
        stream.close()


def test_a_body_that_is_too_long_or_has_no_end_is_refused(guarded: CoordinatorProcess) -> None:
    code, _ = post(f"http://{guarded.http}/api/v1/jobs/x/stop", {"reason": "x" * 100_000}, TOKEN)
    assert code == 413
    host, _, port = guarded.http.rpartition(":")
    for length in (b"", b"content-length: 5\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(
                b"POST /api/v1/jobs/x/stop HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
                + TOKEN.encode()
                + b"\r\n"
                + length
                + b"transfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\n"
            )
            assert b" 413 " in raw.recv(4096)
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n")
        assert raw.recv(4096)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"HTTP/1.1 401")


@pytest.mark.skipif(
    f"fastapi=={version('fastapi')}\n" not in (ROOT / "constraints.txt").read_text(),
    reason="other versions of FastAPI word the same API otherwise",
)
def test_the_description_is_the_one_that_was_agreed(guarded: CoordinatorProcess) -> None:
    """A change of the API shows in `docs/openapi.json`: `python -m tests.integration.coordinator.openapi` renews it."""
    kept = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    assert get(guarded, "/openapi.json") == kept


def test_schemathesis_finds_nothing(guarded: CoordinatorProcess, tmp_path: Path) -> None:
    with Client(guarded.address, "0", TOKEN) as there:  # the id that it likes best
        there.world(2, prefix="")
        there.call("RegisterDataset", dataset_id="images", total_samples=100, shard_size=10)
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "run", f"http://{guarded.http}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--exclude-path", "/api/v1/stream"]
    command += [
        "--max-examples",
        "15",
        "--seed",
        "1",
        "--no-color",
        "--rate-limit",
        "80/s",
        "--generation-database",
        "none",
    ]
    told = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path, check=False)
    assert told.returncode == 0, told.stdout[-6000:] + told.stderr[-2000:]
