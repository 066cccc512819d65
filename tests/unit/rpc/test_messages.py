"""Messages in their frames, and statuses in their headers."""

import copy
import gzip
import pickle
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import InvalidInput
from strata.rpc.answers import http_block, trailers_block
from strata.rpc.head import HttpRefusal
from strata.rpc.messages import measure, pack, unpack
from strata.rpc.status import MESSAGE_BYTES, RpcError, Status, encode_message

MOST = 1000


@given(st.binary(max_size=300), st.booleans())
def test_what_is_packed_is_unpacked(body: bytes, compressed: bool) -> None:
    packed = pack(body, compressed=compressed)
    assert measure(packed, 0, 1 << 20) == len(packed)
    assert unpack(packed[0], packed[5:], "gzip", MOST) == body


def test_a_prefix_that_is_not_all_there() -> None:
    assert [measure(pack(b"", compressed=False)[:size], 0, MOST) for size in range(6)] == [0, 0, 0, 0, 0, 5]
    assert measure(b"xx" + pack(b"abc", compressed=False), 2, MOST) == 8


@pytest.mark.parametrize(
    ("flag", "body", "encoding", "status"),
    [
        (1, b"plain", "identity", Status.INTERNAL),
        (2, b"plain", "gzip", Status.INTERNAL),
        (1, b"plain", "gzip", Status.INTERNAL),
        (1, gzip.compress(b"x" * 100)[:-3], "gzip", Status.INTERNAL),
        (1, gzip.compress(b"x") + b"more", "gzip", Status.INTERNAL),
        (1, gzip.compress(bytes(MOST + 1)), "gzip", Status.RESOURCE_EXHAUSTED),
    ],
    ids=["not said to be gzip", "unknown flag", "not gzip", "cut short", "followed by more", "too long"],
)
def test_what_cannot_be_unpacked(flag: int, body: bytes, encoding: str, status: Status) -> None:
    with pytest.raises(RpcError) as raised:
        unpack(flag, body, encoding, MOST)
    assert raised.value.status is status


def test_the_longest_is_taken() -> None:
    assert len(unpack(1, gzip.compress(bytes(MOST)), "gzip", MOST)) == MOST


@given(st.text(max_size=200))
def test_messages_survive_the_header(message: str) -> None:
    encoded = encode_message(message)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote_to_bytes(encoded).decode() == message.encode("utf-8", "replace").decode()


def test_long_messages_are_cut_between_characters_of_the_code() -> None:
    for start in range(3):
        encoded = encode_message("x" * start + "é" * 5000)
        assert MESSAGE_BYTES - 3 <= len(encoded) <= MESSAGE_BYTES
        assert len(encoded[start:]) % 3 == 0


def test_errors_speak_for_themselves() -> None:
    error = RpcError(Status.UNAVAILABLE, "later")
    assert (str(error), error.code, error.retry) == ("UNAVAILABLE: later", "rpc_unavailable", True)
    assert not RpcError(Status.ABORTED).retry
    assert str(RpcError(Status.ABORTED)) == "ABORTED"
    with pytest.raises(InvalidInput, match="no error"):
        RpcError(Status.OK)
    with pytest.raises(InvalidInput, match="must be a Status"):
        RpcError(5, "x")  # type: ignore[arg-type]


def test_errors_travel_between_processes() -> None:
    sent = RpcError(Status.NOT_FOUND, "words", details=b"more", metadata=[("x", "y")])
    for copied in (pickle.loads(pickle.dumps(sent)), copy.copy(sent)):
        assert vars(copied) == vars(sent)
        assert str(copied) == str(sent)


def test_refusals_as_they_are_sent() -> None:
    assert b"grpc-status\x025" not in trailers_block(None, (), alone=False)
    assert b"grpc-message\x0bno %25 here" in trailers_block(RpcError(Status.NOT_FOUND, "no % here"), (), alone=True)
    assert b":status\x03415" in http_block(HttpRefusal(415, "no"))
