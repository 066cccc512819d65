"""Features of many records at once are those that protobuf reads from each, however they were written."""

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from strata.data.damage import Damage, Misfit
from strata.data.formats import examples as module
from strata.data.formats.examples import Examples
from strata.data.formats.records import Records
from tests.unit.data.exampleoracle import Example, Feature, decoded, encoded

pa = pytest.importorskip("pyarrow")

KINDS = {
    "bytes": st.binary(max_size=200),
    "float": st.floats(width=32),
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300),
}


def records_of(written: list[bytes]) -> Records:
    """With something between them, as in a file."""
    pieces = [b"<head>" + each + b"foot" for each in written]
    starts = np.cumsum([0, *map(len, pieces)])[:-1] + 6
    ends = starts + np.array([*map(len, written)], np.int64)
    return Records(pa.py_buffer(b"".join(pieces)), starts.astype(np.int64), ends.astype(np.int64))


def read(written: list[bytes]) -> list[dict[str, Any]]:
    """The features of each record, comparable."""
    examples = Examples(records_of(written))
    found: list[dict[str, Any]] = [{} for _ in written]
    for name in examples.names:
        if (lists := examples.lists(name)) is None:
            assert examples.row_with(name) is None
            continue
        assert examples.row_with(name) == int(np.flatnonzero(lists.is_there)[0])
        ends = np.cumsum(lists.counts)
        for row in np.flatnonzero(lists.is_there).tolist():
            values = lists.values[int(ends[row] - lists.counts[row]) : int(ends[row])].to_pylist()
            found[row][name] = comparable((module.KINDS[lists.kind], values))
        assert not lists.counts[~lists.is_there].any()
    return found


def comparable(feature: Feature) -> Any:
    kind, values = feature
    return kind, np.array(values, np.float32).tobytes() if kind == "float" else values


def expected(written: list[bytes]) -> list[dict[str, Any]]:
    return [{name: comparable(feature) for name, feature in decoded(each).items()} for each in written]


@st.composite
def datasets(draw: st.DrawFn) -> list[dict[str, Feature]]:
    kinds = draw(st.dictionaries(st.text(max_size=12), st.sampled_from([*KINDS]), max_size=6))
    one = st.fixed_dictionaries(
        {}, optional={name: st.tuples(st.just(kind), st.lists(KINDS[kind], max_size=5)) for name, kind in kinds.items()}
    )
    return draw(st.lists(one, max_size=8))


@given(datasets())
def test_what_protobuf_wrote_is_read(records: list[dict[str, Feature]]) -> None:
    written = [*map(encoded, records)]
    assert read(written) == expected(written)
    assert read(written) == [{name: comparable(each) for name, each in record.items()} for record in records]


# -- other ways to write the same --------------------------------------------------------------------------------------


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = b""
    while value >= 0x80:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def entry(name: str, feature: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, feature))


ONE = field(3, field(1, b"\x07"))
WAYS = {
    "as always": field(1, entry("a", ONE)),
    "without features": b"",
    "with no features": field(1, b""),
    "one number at a time": field(1, entry("a", field(3, b"\x08\x07\x08\x80\x01"))),
    "some packed, some not": field(1, entry("a", field(3, field(1, b"\x01\x02") + b"\x08\x07" + field(1, b"\x03")))),
    "one float at a time": field(1, entry("a", field(2, b"\x0d\0\0\x80\x3f\x0d\0\0\0\x40"))),
    "packed in two": field(1, entry("a", field(2, field(1, b"\0\0\x80\x3f") + field(1, b"\0\0\0\x40")))),
    "an empty packed list": field(1, entry("a", field(3, field(1, b"")))),
    "an empty list": field(1, entry("a", field(3, b""))),
    "a feature of nothing": field(1, entry("a", b"") + entry("b", ONE)),
    "an entry of nothing": field(1, field(1, b"") + entry("b", ONE)),
    "an entry without a value": field(1, field(1, field(1, b"a"))),
    "an entry without a name": field(1, field(1, field(2, ONE))),
    "the value before the name": field(1, field(1, field(2, ONE) + field(1, b"a"))),
    "a name twice": field(1, entry("a", ONE) + entry("b", ONE) + entry("a", field(3, field(1, b"\x09\x08")))),
    "a name twice in an entry": field(1, field(1, field(1, b"a") + field(1, b"b") + field(2, ONE))),
    "a value twice in an entry": field(1, field(1, field(1, b"a") + field(2, ONE) + field(2, ONE))),
    "two kinds in a feature": field(1, entry("a", ONE + field(1, field(1, b"text")))),
    "features twice": field(1, entry("a", ONE)) + field(1, entry("b", ONE)),
    "unknown fields inside": field(1, entry("a", ONE + field(9, b"?")) + field(5, b"?") + b"\x10\x01"),
    "unknown fields in a list of bytes": field(
        1, entry("a", field(1, field(1, b"x") + field(2, b"?") + field(1, b"")))
    ),
    "lengths that are longer than they need be": b"\x0a\x8f\x00\x0a\x8c\x00\x0a\x81\x00a\x12\x85\x00" + ONE,
    "a number that is longer than it need be": field(1, entry("a", field(3, field(1, b"\x87\x80\x80\x00")))),
    "texts, one of them empty": field(1, entry("a", field(1, field(1, b"x") + field(1, b"") + field(1, b"y" * 300)))),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_to_write_it_are_read_as_protobuf_does(way: str) -> None:
    written = [WAYS[way]]
    assert read(written) == expected(written)
    among = [encoded({"z": ("int64", [1])}), *written, b"", encoded({"z": ("int64", [])})]
    assert read(among) == expected(among)


@given(datasets(), st.data())
def test_records_that_were_put_together_are_merged(records: list[dict[str, Feature]], data: st.DataObject) -> None:
    """Two messages one behind the other are one message: the features of both, the last of each name."""
    others = data.draw(st.permutations(records))
    written = [encoded(one) + encoded(two) for one, two in zip(records, others, strict=True)]
    assert read(written) == expected(written)


# -- what is no Example ------------------------------------------------------------------------------------------------


def outcome(written: bytes) -> Any:
    try:
        return read([written])
    except (Damage, Misfit, UnicodeDecodeError):
        return None


WRITTEN = st.sampled_from([*WAYS.values()]) | datasets().map(lambda records: b"".join(map(encoded, records[:1])))


@given(st.data())
def test_any_bytes_are_read_as_protobuf_does_or_refused(data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from([*WAYS.values()]) | st.builds(encoded, datasets().map(lambda many: (many or [{}])[0]))
    )
    harmed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(harmed)))
        harm = data.draw(st.sampled_from(["set", "insert", "cut", "drop"]))
        if harm == "insert":
            harmed.insert(place, data.draw(st.integers(0, 255)))
        elif harm == "cut":
            del harmed[place:]
        elif place < len(harmed):
            harmed[place : place + 1] = b"" if harm == "drop" else bytes([data.draw(st.integers(0, 255))])
    written = bytes(harmed)
    try:
        right = expected([written])
    except DecodeError:
        right = None
    found = outcome(written)
    if found is None and right is not None:  # only what has other fields than an Example is refused besides
        assert len(UnknownFieldSet(Example.FromString(written)))
    else:
        assert found == right


def test_what_is_no_example_is_named() -> None:
    good = encoded({"a": ("int64", [1])})
    for bad, why in (
        (b"\xff\xd8\xff\xe0 a picture", "is no tf.train.Example"),
        (good + field(2, b""), "SequenceExample"),
    ):
        with pytest.raises(Misfit, match=why) as raised:
            Examples(records_of([good, good, bad]))
        assert raised.value.row == 2


def test_kinds_that_differ_are_named() -> None:
    examples = Examples(records_of([encoded({"a": ("int64", [1])}), encoded({}), encoded({"a": ("float", [1.0])})]))
    with pytest.raises(Misfit, match="has float as 'a', and others int64") as raised:
        examples.lists("a")
    assert raised.value.row == 2


def test_very_many_features_or_texts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FEATURES", 5)
    monkeypatch.setattr(module, "MAX_TEXTS", 7)
    few, texts = {f"f{number}": ("int64", [1]) for number in range(5)}, ("bytes", [b""] * 7)
    assert len(read([encoded(few), encoded({"t": texts})])) == 2
    with pytest.raises(Misfit, match="more than 5 features") as raised:
        read([encoded({}), encoded({**few, "more": ("int64", [1])})])
    assert raised.value.row == 1
    with pytest.raises(Misfit, match="more than 7 texts") as raised:
        read([encoded({}), encoded({"t": ("bytes", [b""] * 8)})])
    assert raised.value.row == 1
