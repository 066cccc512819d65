"""What a coordinator makes of text that was written to break a terminal: refused in names, escaped in words."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from strata.errors import InvalidInput, StrataError
from tests.coordinators import TOKEN
from tests.servers.coordinator import Client, CoordinatorProcess

MARKUP = "[/__w/gloo/tcp/pair.cc:553] [red]closed[/red]"
HOSTILE = MARKUP + "\x1b[2J\x1b]0;t\x07\r\x00\x7f\x9b1m\u202egnp\u2066\nforged: a line of its own"


def unprintable(text: str) -> list[str]:
    return [each for each in text if not each.isprintable() and each != "\n"]


def fetched(running: CoordinatorProcess, path: str, body: bytes | None = None) -> tuple[int, str]:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    request = urllib.request.Request(f"http://{running.http}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("method", "fields", "what"),
    [
        ("Register", {"worker_id": "w", "nonce": "n", "ip": HOSTILE}, "ip"),
        ("Register", {"worker_id": "w", "nonce": "n", "metadata": {HOSTILE: ""}}, "a key of metadata"),
        ("Register", {"worker_id": f"w{HOSTILE}", "nonce": "n"}, "worker_id"),
        ("RegisterDataset", {"dataset_id": "d", "total_samples": 1, "shard_size": 1, "path": HOSTILE}, "path"),
        ("RegisterDataset", {"dataset_id": "d", "total_samples": 1, "shard_size": 1, "format": HOSTILE}, "format"),
        ("RegisterDataset", {"dataset_id": HOSTILE, "total_samples": 1, "shard_size": 1}, "dataset_id"),
        ("ConfigureJob", {"retention": {"best_metric": HOSTILE}}, "best_metric"),
    ],
)
def test_names_are_refused_over_grpc(client: Client, method: str, fields: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{what} ") as refusal:
        client.call(method, **fields)
    assert unprintable(str(refusal.value)) == []
    assert r"\x1b" in str(refusal.value)


def test_errors_that_quote_a_name_are_one_line(client: Client) -> None:
    for method in ("GetWorld", "ListDatasets", "LatestCheckpoint"):
        with pytest.raises(StrataError) as refusal:
            client.call(method, job_id=HOSTILE)
        assert str(refusal.value).isprintable()


@pytest.fixture(scope="module")
def told(guarded: CoordinatorProcess) -> CoordinatorProcess:
    """A coordinator that heard hostile words, over gRPC and HTTP."""
    with Client(guarded.address, "hostile", TOKEN) as client:
        worker, other = client.register("w0", metadata={"log": HOSTILE}), client.register("w1")
        client.call("DrainWorker", worker_id=other.worker_id, reason=HOSTILE)
        me = {"worker_id": worker.worker_id, "incarnation": worker.incarnation}
        client.call("Deregister", **me, reason=HOSTILE, died=True)
    body = json.dumps({"reason": HOSTILE}).encode()
    assert fetched(guarded, "/api/v1/jobs/hostile/stop", body)[0] == 200
    return guarded


def test_what_was_said_is_escaped_wherever_it_is_shown(told: CoordinatorProcess) -> None:
    for path in ("dashboard", "workers", "events", "barriers", "datasets", "checkpoints", "jobs"):
        status, text = fetched(told, f"/api/v1/{path}")
        assert (status, unprintable(text)) == (200, [])
    (worker,) = [
        each for each in json.loads(fetched(told, "/api/v1/workers?job=hostile")[1])["items"] if each["metadata"]
    ]
    assert worker["metadata"] == {"log": HOSTILE}  # a program is told what was said
    assert worker["reason"].endswith(HOSTILE)
    assert unprintable(fetched(told, "/metrics")[1]) == []
    log = told.log.read_text("utf-8")
    assert MARKUP in log
    assert unprintable(log) == []
    assert not any(line.startswith("forged") for line in log.splitlines())


@pytest.mark.parametrize("path", ["/api/v1/jobs/a%1b%5b2J/stop", "/api/v1/jobs/hostile/workers/%e2%80%ae/drain"])
def test_names_are_refused_over_http(told: CoordinatorProcess, path: str) -> None:
    status, text = fetched(told, path, b"{}")
    assert status == 422
    assert unprintable(text) == []
    status, text = fetched(told, "/api/v1/workers?job=%1b%5b2J%9b%ff")
    assert (status, unprintable(text)) == (422, [])


def test_half_a_character_is_refused_over_http(told: CoordinatorProcess) -> None:
    status, text = fetched(told, "/api/v1/jobs/hostile/checkpoint", b'{"reason": "\\ud800"}')
    assert status in (400, 422)
    assert unprintable(text) == []
