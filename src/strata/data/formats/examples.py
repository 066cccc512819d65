"""Records as tf.train.Examples: the features of many records at once, columnar from the bytes on.

An Example is a map from names to lists of bytes, of floats or of whole numbers, in any order. The first entry of all
records is looked at, then the second of those that have one, and so on; no record is ever a Python object. A record
that is not written in the one way in which practically all are is first turned into that (`exampleproto`).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from strata.data.columnar import arrow
from strata.data.damage import Damage, Misfit
from strata.data.formats.base import Numbers
from strata.data.formats.exampleproto import rewritten
from strata.data.formats.records import Records
from strata.data.formats.values import Values
from strata.data.formats.wirescan import Flags, Octets, delimited, octet_at, varints

if TYPE_CHECKING:
    import pyarrow as pa

MAX_FEATURES = 4096
"""Of one record: each takes a look at all records."""
MAX_TEXTS = 1 << 16
"""Of one list of bytes, likewise."""

NOTHING, BYTES, FLOATS, INTS = range(4)
KINDS = {BYTES: "bytes", FLOATS: "float", INTS: "int64"}
_FIRST, _SECOND = 0x0A, 0x12
"""The tags of fields 1 and 2, of things with a length."""
_TAGS = [0x0A, 0x12, 0x1A]
"""Of a feature's list of each kind."""


class _Unusual(Exception):
    """Some record is not written in the usual way."""


class _Entries(NamedTuple):
    """The features of all records. `starts` and `ends` are of the values: of numbers, all of them together."""

    rows: Numbers
    name_starts: Numbers
    name_ends: Numbers
    kinds: Numbers
    starts: Numbers
    ends: Numbers


class Lists(NamedTuple):
    """What the records have of one feature: how many values each, and all values, one after the other."""

    kind: int
    counts: Numbers
    is_there: Flags
    values: "pa.Array"


class Examples:
    """The records of a block. Misfit for one that is no Example."""

    def __init__(self, records: Records) -> None:
        try:
            self._read(records)
        except _Unusual:
            try:
                self._read(rewritten(records))
            except _Unusual:
                raise Damage("a record of it is no tf.train.Example") from None

    def _read(self, records: Records) -> None:
        self._data = records.data
        self._view: Octets = np.frombuffer(records.data, np.uint8)
        self.count = len(records.starts)
        entries = _entries(self._view, records)
        everything = np.arange(len(entries.rows), dtype=np.int64)
        keys = Values(self._data, entries.name_starts, entries.name_ends).take(everything).dictionary_encode()
        self._codes = {name.as_py().decode(): code for code, name in enumerate(keys.dictionary)}
        codes = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        order = np.argsort(codes * self.count + entries.rows, kind="stable")  # quick for what is nearly in order
        self._entries = _Entries(*(each[order] for each in entries))
        codes = codes[order]
        if np.any((np.diff(codes) == 0) & (np.diff(self._entries.rows) == 0)):
            raise _Unusual  # one name twice: the last counts
        self._bounds = np.searchsorted(codes, np.arange(len(self._codes) + 1))
        self._texts = _texts(self._view, self._entries)

    @property
    def names(self) -> list[str]:
        """Of features, in alphabetical order: records have none."""
        return sorted(self._codes)

    def row_with(self, name: str) -> int | None:
        """The first record that has this feature."""
        chosen = self._chosen(name)
        return int(self._entries.rows[chosen[0]]) if len(chosen) else None

    def lists(self, name: str) -> Lists | None:
        """The values of one feature; None if no record has it. Misfit if records have it of different kinds."""
        chosen = self._chosen(name)
        if not len(chosen):
            return None
        kinds, rows = self._entries.kinds[chosen], self._entries.rows[chosen]
        kind = int(kinds[0])
        other = np.flatnonzero(kinds != kind)
        if len(other):
            raise Misfit(
                int(rows[other[0]]), f"has {KINDS[int(kinds[other[0]])]} as {name!r}, and others {KINDS[kind]}"
            )
        counts, values = self._decoded(kind, chosen)
        of_all = np.zeros(self.count, np.int64)
        of_all[rows] = counts
        is_there = np.zeros(self.count, np.bool_)
        is_there[rows] = True
        return Lists(kind, of_all, is_there, values)

    def _chosen(self, name: str) -> Numbers:
        """Its entries, in the order of records. One that says nothing is none."""
        if name not in self._codes:
            return np.empty(0, np.int64)
        first, behind = self._bounds[self._codes[name] : self._codes[name] + 2].tolist()
        chosen: Numbers = np.flatnonzero(self._entries.kinds[first:behind] != NOTHING) + first
        return chosen

    def _decoded(self, kind: int, chosen: Numbers) -> "tuple[Numbers, pa.Array]":
        """How many values each of these entries has, and the values."""
        if kind == BYTES:
            entries, starts, ends = self._texts
            first, behind = np.searchsorted(entries, [chosen[0], chosen[-1] + 1])
            counts = np.bincount(entries[first:behind] - chosen[0], minlength=int(chosen[-1] - chosen[0]) + 1)
            texts = Values(self._data, starts[first:behind], ends[first:behind])
            return counts[chosen - chosen[0]], texts.take(np.arange(behind - first, dtype=np.int64))
        starts, ends = self._entries.starts[chosen], self._entries.ends[chosen]
        octets = self._together(starts, ends)
        if kind == FLOATS:
            return (ends - starts) // 4, arrow().array(octets.view("<f4").astype(np.float32, copy=False))
        numbers, before = varints(octets, np.cumsum(ends - starts))
        return np.diff(before, prepend=0), arrow().array(numbers)

    def _together(self, starts: Numbers, ends: Numbers) -> Octets:
        """The bytes of these stretches, one after the other."""
        joined = Values(self._data, starts, ends).take(np.arange(len(starts), dtype=np.int64))
        data = joined.buffers()[2]
        size = int((ends - starts).sum())
        return np.frombuffer(data, np.uint8, size) if size else np.empty(0, np.uint8)


def _entries(view: Octets, records: Records) -> _Entries:
    is_empty = records.starts == records.ends
    features = delimited(view, records.starts, records.ends, _FIRST)
    if not np.all(is_empty | (features.good & (features.ends == records.ends))):
        raise _Unusual
    places = np.where(is_empty, features.ends, features.starts)
    return _Entries(*_joined([*_steps(view, places, features.ends)], len(_Entries._fields)))


def _joined(found: Sequence[tuple[Numbers, ...]], width: int) -> list[Numbers]:
    nothing = np.empty(0, np.int64)
    return [np.concatenate([nothing, *(each[column] for each in found)]) for column in range(width)]


def _steps(view: Octets, places: Numbers, bounds: Numbers) -> Iterator[_Entries]:
    """The first entry of each record, then the second of those that have one, and so on."""
    rows = np.flatnonzero(places < bounds)
    places, bounds = places[rows], bounds[rows]
    for _ in range(MAX_FEATURES):
        if not len(rows):
            return
        entry = delimited(view, places, bounds, _FIRST)
        name = delimited(view, entry.starts, entry.ends, _FIRST)
        feature = delimited(view, name.ends, entry.ends, _SECOND)
        if not np.all(entry.good & name.good & feature.good & (feature.ends == entry.ends)):
            raise _Unusual
        kinds, starts, ends = _values(view, feature.starts, feature.ends)
        yield _Entries(rows, name.starts, name.ends, kinds, starts, ends)
        more = np.flatnonzero(entry.ends < bounds)
        rows, places, bounds = rows[more], entry.ends[more], bounds[more]
    if len(rows):
        raise Misfit(int(rows[0]), f"has more than {MAX_FEATURES} features: no more are read")


def _values(view: Octets, starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Of features: the kind of each, and where its values are."""
    is_there = starts < ends
    kinds = np.where(is_there, (octet_at(view, starts).astype(np.int64) - _FIRST) // 8 + 1, NOTHING)
    tags = np.where(is_there, _FIRST + 8 * (kinds - 1), 0)
    lists = delimited(view, starts, ends, None)
    is_usual = (lists.good & (lists.ends == ends) & (kinds >= BYTES) & (kinds <= INTS)) & (
        tags == octet_at(view, starts)
    )
    if not np.all(is_usual | ~is_there):
        raise _Unusual
    begins, stops = np.where(is_there, lists.starts, ends), ends
    numbers = np.flatnonzero((kinds >= FLOATS) & (begins < stops))
    packed = delimited(view, begins[numbers], stops[numbers], _FIRST)
    if not np.all(packed.good & (packed.ends == stops[numbers])):
        raise _Unusual  # one at a time
    begins[numbers] = packed.starts
    _check_whole(view, kinds, begins, stops)
    return kinds, begins, stops


def _check_whole(view: Octets, kinds: Numbers, starts: Numbers, ends: Numbers) -> None:
    """That floats are whole ones, and that the last number of each list ends with it."""
    if np.any((kinds == FLOATS) & ((ends - starts) % 4 != 0)):
        raise _Unusual
    numbers = np.flatnonzero((kinds == INTS) & (starts < ends))
    if np.any(octet_at(view, ends[numbers] - 1) >= 0x80):
        raise _Unusual


def _texts(view: Octets, entries: _Entries) -> tuple[Numbers, Numbers, Numbers]:
    """The values of all lists of bytes: the number of the entry of each, and where it is. In the order of entries."""
    found = []
    active = np.flatnonzero((entries.kinds == BYTES) & (entries.starts < entries.ends))
    places = entries.starts[active]
    for _ in range(MAX_TEXTS):
        if not len(active):
            break
        text = delimited(view, places, entries.ends[active], _FIRST)
        if not np.all(text.good):
            raise _Unusual
        found.append((active, text.starts, text.ends))
        more = np.flatnonzero(text.ends < entries.ends[active])
        active, places = active[more], text.ends[more]
    if len(active):
        raise Misfit(int(entries.rows[active[0]]), f"has a list of more than {MAX_TEXTS} texts: no more are read")
    numbers, starts, ends = _joined(found, 3)
    order = np.argsort(numbers, kind="stable")
    return numbers[order], starts[order], ends[order]
