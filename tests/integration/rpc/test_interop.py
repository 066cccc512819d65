"""The cases of gRPC's interoperability tests, asked by foreign clients, of both servers."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from strata.rpc.status import Status
from tests.integration.rpc.clients import BOTH, CLIENT, SERVER, Ask, Client
from tests.servers.interop import SERVICE, TOKEN
from tests.until import until

SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
ECHOED = (
    ("x-grpc-test-echo-initial", "test_initial_metadata_value"),
    ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab"),
)


def told(client: Client) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(client.ask(Ask("Told")).responses[0])
    return found


def heard_of(client: Client, kind: str, name: str) -> None:
    """The server learns of a cancellation a moment after the client."""
    until(lambda: told(client)[kind].get(name))


@pytest.mark.parametrize("method", ["Echo", "EchoLater"])
def test_empty_unary(client: Client, method: str) -> None:
    outcome = client.ask(Ask(method, [b""]))
    assert (outcome.responses, outcome.status) == ([b""], Status.OK)


def test_large_unary(client: Client) -> None:
    outcome = client.ask(Ask("Sized", [b"00314159" + bytes(271_820)]))
    assert [len(response) for response in outcome.responses] == [314_159]


def test_the_largest_unary(client: Client) -> None:
    outcome = client.ask(Ask("Echo", [bytes(4 << 20)]))
    assert [len(response) for response in outcome.responses] == [4 << 20]


def test_client_streaming(client: Client) -> None:
    outcome = client.ask(Ask("Total", [bytes(size) for size in (27182, 8, 1828, 45904, 0, 300_000)], CLIENT))
    assert outcome.responses == [str(27182 + 8 + 1828 + 45904 + 300_000).encode()]


def test_server_streaming(client: Client) -> None:
    sizes = [31415, 9, 2653, 58979, 0, 1 << 20]
    outcome = client.ask(Ask("Sizes", [json.dumps(sizes).encode()], SERVER))
    assert [len(response) for response in outcome.responses] == sizes
    assert outcome.status == Status.OK


def test_many_responses(client: Client) -> None:
    outcome = client.ask(Ask("Sizes", [json.dumps([100] * 5000).encode()], SERVER))
    assert len(outcome.responses) == 5000


def test_ping_pong(client: Client) -> None:
    sent = [bytes(size) for size in (27182, 8, 1828, 45904)]
    outcome = client.ask(Ask("PingPong", sent, BOTH, in_turn=True))
    assert (outcome.responses, outcome.status) == (sent, Status.OK)


def test_both_directions_at_once(client: Client) -> None:
    outcome = client.ask(Ask("Both", [b"300", *[bytes(5000)] * 200], BOTH))
    assert outcome.responses == [*(str(number).encode() for number in range(300)), b"200 more"]


@pytest.mark.parametrize(("method", "kind", "responses"), [("PingPong", BOTH, []), ("Total", CLIENT, [b"0"])])
def test_empty_stream(client: Client, method: str, kind: str, responses: list[bytes]) -> None:
    outcome = client.ask(Ask(method, [], kind))
    assert (outcome.responses, outcome.status) == (responses, Status.OK)


def test_a_stream_of_no_responses(client: Client) -> None:
    outcome = client.ask(Ask("Sizes", [b"[]"], SERVER, metadata=ECHOED))
    assert (outcome.responses, outcome.status) == ([], Status.OK)
    assert outcome.trailing["x-grpc-test-echo-trailing-bin"] == b"\xab\xab\xab"


@pytest.mark.parametrize(("method", "kind"), [("Sleep", "unary"), ("SleepStream", SERVER)])
def test_cancel_after_begin(client: Client, method: str, kind: str) -> None:
    name = f"{type(client).__name__} begin {method}"
    outcome = client.ask(Ask(method, [name.encode()], kind, cancel_after=0))
    assert outcome.status == Status.CANCELLED
    heard_of(client, "cancelled", name)
    heard_of(client, "ends", f"{method} CANCELLED")


def test_cancel_after_first_response(client: Client) -> None:
    name = f"{type(client).__name__} first"
    outcome = client.ask(Ask("SleepStream", [name.encode()], SERVER, cancel_after=1))
    assert (outcome.responses, outcome.status) == ([b"first"], Status.CANCELLED)
    heard_of(client, "cancelled", name)


@pytest.mark.parametrize(("method", "kind"), [("Sleep", "unary"), ("SleepStream", SERVER)])
def test_timeout_on_sleeping_server(client: Client, method: str, kind: str) -> None:
    name = f"{type(client).__name__} timeout {method}"
    outcome = client.ask(Ask(method, [name.encode()], kind, timeout=0.3))
    assert outcome.status == Status.DEADLINE_EXCEEDED
    heard_of(client, "cancelled", name)


@pytest.mark.parametrize(
    ("method", "kind", "request_"),
    [("Echo", "unary", b"x"), ("EchoLater", "unary", b"x"), ("Sizes", SERVER, b"[1]"), ("PingPong", BOTH, b"x")],
)
def test_custom_metadata(client: Client, method: str, kind: str, request_: bytes) -> None:
    outcome = client.ask(Ask(method, [request_], kind, metadata=ECHOED))
    assert outcome.status == Status.OK
    assert outcome.initial["x-grpc-test-echo-initial"] == "test_initial_metadata_value"
    assert outcome.trailing["x-grpc-test-echo-trailing-bin"] == b"\xab\xab\xab"


@pytest.mark.parametrize("status", [status for status in Status if status])
def test_status_code_and_message(client: Client, status: Status) -> None:
    asked = {"status": status, "message": f"as {status.name} it was asked", "details": "bytes", "trailing": "behind"}
    outcome = client.ask(Ask("End", [json.dumps(asked).encode()]))
    assert (outcome.responses, outcome.status, outcome.message) == ([], status, asked["message"])
    assert outcome.trailing["grpc-status-details-bin"] == b"bytes"
    assert (outcome.trailing["x-reason"], outcome.trailing["x-end"]) == ("asked", "behind")


def test_special_status_message(client: Client) -> None:
    outcome = client.ask(Ask("End", [json.dumps({"status": 2, "message": SPECIAL}).encode()]))
    assert (outcome.status, outcome.message) == (Status.UNKNOWN, SPECIAL)


@pytest.mark.parametrize("path", [f"/{SERVICE}/Nothing", "/nobody.Knows/This"])
def test_unimplemented(client: Client, path: str) -> None:
    outcome = client.ask(Ask(path, [b"x" * 100_000]))
    assert outcome.status == Status.UNIMPLEMENTED
    assert path in outcome.message


def test_a_handler_that_breaks_says_only_that(client: Client) -> None:
    outcome = client.ask(Ask("Crash"))
    assert outcome.status == Status.UNKNOWN
    assert "ZeroDivisionError" in outcome.message
    assert "secret" not in outcome.message


@pytest.mark.parametrize(("method", "kind"), [("Echo", "unary"), ("Total", CLIENT)])
def test_compressed_requests(client: Client, method: str, kind: str) -> None:
    outcome = client.ask(Ask(method, [bytes(300_000)], kind, gzip=True))
    assert outcome.status == Status.OK
    assert outcome.responses == [bytes(300_000) if method == "Echo" else b"300000"]


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize(("method", "kind"), [("Echo", "unary"), ("Total", CLIENT)])
def test_a_request_that_is_too_large(client: Client, method: str, kind: str, gzip: bool) -> None:
    outcome = client.ask(Ask(method, [bytes((4 << 20) + 1)], kind, gzip=gzip))
    assert outcome.status == Status.RESOURCE_EXHAUSTED


def test_a_response_that_is_too_large(client: Client) -> None:
    assert client.ask(Ask("Sized", [b"04194305"])).status == Status.RESOURCE_EXHAUSTED


def test_who_calls(client: Client) -> None:
    known = client.ask(Ask("Whoami", metadata=(("authorization", f"Bearer {TOKEN}"),)))
    found = json.loads(known.responses[0])
    assert found["identity"] == "somebody"
    assert found["peer"].startswith("127.0.0.1:")
    assert 10 < found["deadline"] <= 20.5  # clients round it up
    assert found["subject"] is None
    refused = client.ask(Ask("Whoami", metadata=(("authorization", "Bearer wrong"),)))
    assert (refused.status, refused.message) == (Status.UNAUTHENTICATED, "the token is wrong")


def test_without_a_deadline(client: Client) -> None:
    assert json.loads(client.ask(Ask("Whoami", timeout=None)).responses[0])["deadline"] is None


def test_several_values_under_one_name(client: Client) -> None:
    sent = (("x-many", "one"), ("x-many", "two"))
    found = json.loads(client.ask(Ask("Whoami", metadata=sent)).responses[0])["metadata"]
    # A client may join them, as HTTP allows.
    assert ", ".join(value for name, value in found if name == "x-many").replace(", ", ",") == "one,two"


def test_many_calls_at_once(client: Client) -> None:
    sent = [str(number).encode() * 100 for number in range(400)]
    with ThreadPoolExecutor(40) as threads:
        outcomes = list(threads.map(lambda request: client.ask(Ask("EchoLater", [request], timeout=240.0)), sent))
    assert [outcome.responses for outcome in outcomes] == [[request] for request in sent]
