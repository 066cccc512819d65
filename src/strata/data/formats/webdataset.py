"""WebDataset: tars whose members of one basename, one after the other, are a sample; columns are their extensions.

A block is a run of samples; `start` and `length` are its bytes. `dir/0001.seg.png` is column `seg.png` of the sample
`dir/0001`, which column `__key__` holds. As with the library of that name, extensions are taken in small letters, and
members without one, or whose name begins with a dot, are left out. A sample that lacks a member has null there.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from strata.data.columnar import arrow, texts
from strata.data.damage import Damage
from strata.data.files import File, Reading
from strata.data.formats.base import (
    BLOCK_BYTES,
    MAX_VALUE_BYTES,
    Block,
    FileIndex,
    check_block_bytes,
    check_gzip,
    file_index,
    seal_of_ends,
)
from strata.data.formats.places import LARGE_BYTES, Parts, Places, remembered
from strata.data.formats.tar import RECORD, Member, Source, members
from strata.data.formats.values import Values
from strata.data.formats.window import Held, Part, Window
from strata.data.schemas import Found, union

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "__key__"
MAX_COLUMNS = 1000


class _Sample(NamedTuple):
    key: str
    start: int
    members: dict[str, Member]


class WebDataset(msgspec.Struct, frozen=True, tag="webdataset"):
    """Tars of samples. Compressed ones are refused."""

    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        check_block_bytes(self.block_bytes)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".tar", ".tar.gz", ".tgz")

    def merge(self, found: Found) -> "pa.Schema":
        return union(found)

    def index(self, file: File) -> FileIndex:
        pa = arrow()
        source = Window(file)
        check_gzip(bytes(source.at(0, min(2, file.size))))
        blocks: list[Block] = []
        columns: dict[str, None] = {}
        start, end, rows = 0, 0, 0
        for sample in _samples(source, whole=True):
            if rows and sample.start - start >= self.block_bytes:
                blocks.append(Block(start, end - start, rows))
                start, rows = sample.start, 0
            start = start if rows else sample.start
            end, rows = max(member.next for member in sample.members.values()), rows + 1
            if end - sample.start > MAX_VALUE_BYTES:
                raise Damage(f"sample {sample.key!r} has more than {MAX_VALUE_BYTES} bytes")
            columns |= dict.fromkeys(sample.members)
            if len(columns) > MAX_COLUMNS:
                raise Damage(f"it has more than {MAX_COLUMNS} extensions, each of which would be a column")
        blocks.append(Block(start, end - start, rows))
        schema = pa.schema([(KEY, pa.string()), *((name, pa.binary()) for name in columns)]) if columns else None
        return file_index(blocks, schema, seal_of_ends(file))

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        pa = arrow()
        data = file.read(block.start, block.length)
        samples = [*_samples(Held(memoryview(data)), whole=False)]
        # In the order in which they lie in the file, which is that of samples.
        places = [(row, name, member) for row, sample in enumerate(samples) for name, member in sample.members.items()]
        starts = np.array([member.start for _, _, member in places], np.int64)
        values = Values(data, starts, starts + np.array([member.size for _, _, member in places], np.int64))
        numbers = {name: np.full(len(samples), -1, np.int64) for name in schema.names}
        for number, (row, name, _) in enumerate(places):
            if name in numbers:
                numbers[name][row] = number
        keys = _keys(samples)
        made = {name: keys if name == KEY else values.take(numbers[name]) for name in schema.names}
        return pa.table(made, schema=schema) if made else pa.table({KEY: keys}).select([])

    def parts(self, file: File, block: Block, schema: "pa.Schema") -> Parts | None:
        if block.length < LARGE_BYTES * block.rows:
            return None
        return remembered(file, block, schema, lambda: _parts(file, block, schema))


def _parts(file: File, block: Block, schema: "pa.Schema") -> Parts:
    """Headers are read one by one, from one to the next."""
    pa = arrow()
    with file.reading() as reading:
        reading.soon(block.start, block.length)
        samples = [*_samples(Window(Part(reading, block.start, block.length), RECORD), whole=False)]
        places = {name: _places(samples, name, block.start) for name in schema.names if name != KEY}
        left = {name: each for name, each in places.items() if _is_large(each)}
        read = {KEY: _keys(samples)} | {
            name: pa.array(_values(reading, each), pa.binary()) for name, each in places.items() if name not in left
        }
    return Parts(pa.table({name: read[name] for name in schema.names if name in read}), left)


def _keys(samples: list[_Sample]) -> "pa.Array":
    return texts([sample.key for sample in samples])


def _places(samples: list[_Sample], name: str, start: int) -> Places:
    """Of a column; its block begins there."""
    found = [sample.members.get(name) for sample in samples]
    starts = [0 if member is None else start + member.start for member in found]
    return Places(np.array(starts, np.int64), np.array([-1 if each is None else each.size for each in found], np.int64))


def _is_large(places: Places) -> bool:
    there = places.lengths[places.lengths >= 0]
    return len(there) > 0 and int(there.sum()) >= LARGE_BYTES * len(there)


def _values(reading: Reading, places: Places) -> list[bytes | None]:
    return [
        None if length < 0 else reading.read(start, length)
        for start, length in zip(*map(np.ndarray.tolist, places), strict=True)
    ]


def _samples(source: Source, *, whole: bool) -> Iterator[_Sample]:
    sample: _Sample | None = None
    for member in members(source, whole=whole):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, extension = base.partition(".")
        if not stem or not dot:
            continue
        key, extension = f"{folder}{slash}{stem}", extension.lower()
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = _Sample(key, member.header, {})
        if extension in sample.members or extension == KEY:
            raise Damage(f"sample {key!r} has {extension!r} twice")
        sample.members[extension] = member
    if sample is not None:
        yield sample
