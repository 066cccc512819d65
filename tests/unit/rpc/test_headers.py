"""The header cache against plain hpack: whatever comes, in whatever order, both understand the same."""

import base64
import re
from random import Random
from typing import Any

import pytest
from hpack import Decoder, Encoder, HeaderTuple, HPACKError, NeverIndexedHeaderTuple
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import InvalidInput
from strata.rpc.decompression import BadBlock, Decompressor, TooLong
from strata.rpc.fields import check_metadata, write_fields
from strata.rpc.head import Head, HttpRefusal, Malformed, read_head, read_timeout
from strata.rpc.headers import ENTRIES, HARD_LIMIT, HeaderReader
from strata.rpc.huffman import BadCode, decode
from strata.rpc.rfc7541 import STATIC_TABLE
from strata.rpc.status import RpcError, Status
from tests.unit.rpc.peer import FIELDS, admit_all, block

CODE = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
LIST_BYTES = 16_384
MANY_RESIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
"""Of its table, at a block's beginning: plain hpack allows any number."""
HARD_BYTES = LIST_BYTES * HARD_LIMIT


def reader() -> HeaderReader:
    return HeaderReader(LIST_BYTES, admit_all)


def understood(head: Head) -> tuple[object, ...]:
    return (head.path, head.metadata, head.authority, head.timeout_seconds, head.encoding, head.content_length)


class Plain:
    """What the blocks mean without a cache."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=HARD_BYTES)

    def head(self, raw: bytes) -> Head:
        return read_head(self._decoder.decode(raw, raw=True))


def said_by(work: object, raw: bytes) -> object:
    """What was understood, or that it was not."""
    try:
        return understood(work.head(raw))  # type: ignore[attr-defined]
    except Malformed:
        return "malformed"
    except Exception as error:  # noqa: BLE001  hpack has many, and they all mean the same
        return "broken" if not isinstance(error, AssertionError) else error


names = st.sampled_from(["x-trace", "x-user", "grpc-timeout", "user-agent", "x-bin", "X-Bad"])
values = st.sampled_from(["", "1", "10S", "999m", "abc", "value" * 20, "\x01", "é"])
extras = st.lists(st.tuples(names, values, st.booleans()), max_size=4)


@given(st.lists(st.tuples(extras, st.integers(-1, 600), st.booleans()), max_size=30))
def test_an_encoder_that_changes_its_mind_is_followed(
    calls: list[tuple[list[tuple[str, str, bool]], int, bool]],
) -> None:
    encoder, cached, plain = Encoder(), reader(), Plain()
    for fields, table_size, huffman in calls:
        if table_size >= 0:
            encoder.header_table_size = table_size
        sent = [HeaderTuple(*field) for field in FIELDS]
        sent += [NeverIndexedHeaderTuple(n, v) if secret else HeaderTuple(n, v) for n, v, secret in fields]
        raw = encoder.encode(sent, huffman=huffman)
        assert said_by(cached, raw) == said_by(plain, raw)


representations = st.one_of(
    st.integers(0x80, 0xFF).map(lambda byte: bytes([byte])),
    st.sampled_from([b"\x20", b"\x3e", b"\x3f\xe1\x1f", b"\x3f\x01"]),
    st.tuples(st.sampled_from([0x00, 0x10, 0x40]), st.sampled_from([b"a", b"bb", b"ccc"]), values).map(
        lambda one: bytes([one[0], len(one[1])]) + one[1] + bytes([len(one[2].encode())]) + one[2].encode()
    ),
    st.tuples(st.integers(0x41, 0x7E), values).map(lambda one: bytes([one[0], len(one[1].encode())]) + one[1].encode()),
    st.binary(max_size=4),
)


@given(st.lists(st.lists(representations, max_size=6).map(b"".join), min_size=1, max_size=6), st.randoms())
def test_blocks_made_by_hand_are_followed(blocks: list[bytes], order: Random) -> None:
    """The same few blocks again and again, so that the cache fills; some change the table that the others read."""
    cached, plain = reader(), Plain()
    for _ in range(40):
        raw = block() + order.choice(blocks) if order.random() < 0.7 else order.choice(blocks) + block()
        if MANY_RESIZES.match(raw):
            continue
        told = said_by(plain, raw)
        assert said_by(cached, raw) == told
        if told == "broken":  # the connection ends here
            return


@given(st.lists(st.one_of(st.lists(representations, max_size=12).map(b"".join), st.binary(max_size=40)), max_size=30))
def test_any_blocks_are_decompressed_as_hpack_does(blocks: list[bytes]) -> None:
    """Until one is broken, which ends the connection. It must be broken for both."""
    own, plain = Decompressor(HARD_BYTES), Decoder(max_header_list_size=HARD_BYTES)
    for raw in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in plain.decode(raw, raw=True)]
        except Exception:  # noqa: BLE001  whatever hpack makes of it
            with pytest.raises((BadBlock, TooLong)):
                own.fields(raw)
            return
        try:
            assert own.fields(raw) == expected
        except BadBlock as error:
            assert "again and again" in str(error)  # noqa: PT017  plain hpack allows any number of resizes
            return
        assert list(own.entries) == list(plain.header_table.dynamic_entries)


@given(st.one_of(st.binary(max_size=30), st.binary(max_size=60).map(CODE.encode)))
def test_huffman_code_is_read_as_hpack_does(coded: bytes) -> None:
    try:
        expected = bytes(decode_huffman(coded))
    except HPACKError:
        with pytest.raises(BadCode):
            decode(coded)
    else:
        assert decode(coded) == expected


def test_the_static_table_is_that_of_hpack() -> None:
    assert HeaderTable.STATIC_TABLE == STATIC_TABLE


def test_every_symbol_is_known() -> None:
    for symbol in range(256):
        for text in (bytes([symbol]), bytes([symbol, 48, symbol])):
            assert decode(CODE.encode(text)) == text


def test_a_block_is_decoded_twice_and_then_known() -> None:
    read, raw = reader(), block()
    first, second, third, fourth = (read.head(raw) for _ in range(4))
    assert first is not second
    assert second is third is fourth


def test_any_change_of_the_table_clears_the_cache() -> None:
    encoder = Encoder()
    raw = block()
    for change in (encoder.encode([*FIELDS, ("x-new", "entry")]), b"\x20" + raw, b"\x3f\xe1\x1f" + raw):
        read = reader()
        known = [read.head(raw) for _ in range(3)][-1]
        read.head(change)
        assert read.head(raw) is not known


def test_what_reads_the_table_is_cached_and_means_something_else_after_a_change() -> None:
    encoder, read = Encoder(), reader()
    fields = [*FIELDS, ("x-user", "ada")]
    read.head(encoder.encode(fields))
    indexed = encoder.encode(fields)
    assert len(indexed) < 20
    assert [read.head(indexed).value("x-user") for _ in range(4)] == ["ada"] * 4
    read.head(block() + b"\x40\x06x-user\x03bob")  # pushes the others one further back
    with pytest.raises((Malformed, BadBlock)):
        read.head(indexed)


def test_the_cache_is_bounded_in_number_and_size() -> None:
    read, blocks = reader(), [block([*FIELDS, ("x-number", str(number))]) for number in range(200)]
    for raw in blocks:
        read.head(raw)
        read.head(raw)
    assert [raw for raw in blocks if read.known(raw)] == blocks[-ENTRIES:]
    read = reader()
    for raw in blocks:
        read.head(raw)
    for raw in blocks[: -2 * ENTRIES]:
        read.head(raw)
        assert not read.known(raw), "it was seen too long ago"
    long = block([*FIELDS, ("x-long", "y" * 120), ("x-longer", "y" * 120), ("x-longest", "y" * 120)]) + block(
        [("x-more", "y" * 120)]
    )
    assert len(long) > 512
    for _ in range(3):
        read.head(long)
    assert not read.known(long)


def test_what_was_refused_is_not_kept() -> None:
    def admit(head: Head) -> None:
        if head.value("authorization") != "Bearer right":
            head.refusal = RpcError(Status.UNAUTHENTICATED)

    read = HeaderReader(LIST_BYTES, admit)
    wrong, right = (block() + b"\x10\x0dauthorization\x0cBearer " + word for word in (b"wrong", b"right"))
    for raw, kept in ((wrong, False), (right, True)):
        for _ in range(3):
            read.head(raw)
        assert (read.known(raw) is not None) is kept
    read.forget()
    assert not read.known(right)


def test_a_list_that_is_too_long_is_refused_alone() -> None:
    read = reader()
    refused = read.head(block([*FIELDS, *[("x", "y" * 100)] * 130])).refusal
    assert isinstance(refused, RpcError)
    assert refused.status is Status.RESOURCE_EXHAUSTED
    assert read.head(block()).refusal is None


def test_commas_do_not_make_many_of_few() -> None:
    refused = read_head([*((n.encode(), v.encode()) for n, v in FIELDS), (b"x-bin", b"," * 4000)]).refusal
    assert isinstance(refused, RpcError)
    assert refused.status is Status.RESOURCE_EXHAUSTED


def test_what_is_too_long_or_broken_is_told_apart() -> None:
    with pytest.raises(TooLong):
        reader().head(block([*FIELDS, *[("x", "y" * 100)] * 500]))
    with pytest.raises(BadBlock):
        reader().head(b"\xff")
    with pytest.raises(BadBlock, match="again and again"):
        reader().head(b"\x20" * 3 + block())
    with pytest.raises(Malformed):
        reader().trailers(block([(":path", "/")]))
    reader().trailers(block([("x-sound", "yes")]))


# -- heads -----------------------------------------------------------------------------------------------------------


def head_of(*extra: tuple[str, str], without: str = "") -> Head:
    fields = [field for field in FIELDS if field[0] != without]
    return read_head([(name.encode(), value.encode("latin-1")) for name, value in (*fields, *extra)])


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"400m", 0.4),
        (b"5u", 5e-6),
        (b"99999999n", 0.099999999),
        (b"0S", 0),
    ],
)
def test_timeouts(said: bytes, seconds: float) -> None:
    assert read_timeout(said) == pytest.approx(seconds)


@pytest.mark.parametrize("said", ["", "5", "S", "123456789S", "-1S", "1.5S", "5s", "5 S", "٣S"])
def test_timeouts_that_are_none(said: str) -> None:
    refusal = read_head(
        [*((name.encode(), value.encode()) for name, value in FIELDS), (b"grpc-timeout", said.encode())]
    ).refusal
    assert isinstance(refusal, RpcError)
    assert refusal.status is Status.INTERNAL


def test_metadata_is_what_is_left() -> None:
    binary = base64.b64encode(b"\0\xff").decode()
    head = head_of(
        ("x-text", "väl"), ("x-raw-bin", binary), ("x-raw-bin", f"{binary.rstrip('=')},"), ("user-agent", "t")
    )
    assert head.metadata == (
        ("x-text", "väl"),
        ("x-raw-bin", b"\0\xff"),
        ("x-raw-bin", b"\0\xff"),
        ("x-raw-bin", b""),
        ("user-agent", "t"),
    )
    assert head.value("x-raw-bin") == b"\0\xff"
    assert head.value("x-none") is None
    refusal = head_of(("x-raw-bin", "?")).refusal
    assert isinstance(refusal, RpcError)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (head_of(without="content-type"), 415),
        (head_of(("content-type", "text/html"), without="content-type"), 415),
        (head_of(("content-type", "application/grpc-web"), without="content-type"), 415),
    ],
)
def test_what_is_not_grpc(head: Head, status: int) -> None:
    assert isinstance(head.refusal, HttpRefusal)
    assert head.refusal.status == status


def test_what_is_not_a_post() -> None:
    fields = [(b":method", b"GET"), *((n.encode(), v.encode()) for n, v in FIELDS if n != ":method")]
    refusal = read_head(fields).refusal
    assert isinstance(refusal, HttpRefusal)
    assert refusal.status == 405


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_what_is_grpc(kind: str) -> None:
    assert head_of(("content-type", kind), without="content-type").refusal is None


def test_compressions() -> None:
    head = head_of(("grpc-encoding", "gzip"), ("grpc-accept-encoding", "identity, deflate,gzip"))
    assert (head.encoding, head.accepts_gzip) == ("gzip", True)
    refusal = head_of(("grpc-encoding", "brotli")).refusal
    assert isinstance(refusal, RpcError)
    assert (refusal.status, refusal.metadata) == (Status.UNIMPLEMENTED, (("grpc-accept-encoding", "identity,gzip"),))


# -- what is written -------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.text("abc-", min_size=1, max_size=300),
            st.text(st.characters(max_codepoint=126, min_codepoint=32), max_size=20_000),
        ),
        max_size=4,
    )
)
def test_what_is_written_any_decoder_reads(fields: list[tuple[str, str]]) -> None:
    fields = [(name, value) for name, value in fields if not name.endswith("-bin")]
    decoder = Decoder(max_header_list_size=1 << 20)
    read: list[Any] = [tuple(field) for field in decoder.decode(write_fields(fields))]
    assert read == fields
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize(
    "wrong",
    [
        ("", "x"),
        ("X", "x"),
        (":path", "x"),
        ("grpc-status", "0"),
        ("a b", "x"),
        ("x", "\n"),
        ("x", "é"),
        ("x", " x"),
        ("x", b"bytes"),
        ("x-bin", "text"),
    ],
)
def test_metadata_that_cannot_be_sent(wrong: tuple[str, str | bytes]) -> None:
    with pytest.raises(InvalidInput):
        check_metadata([wrong])
    check_metadata([("x-1_a.b", "fine ~"), ("x-bin", b"\0")])
