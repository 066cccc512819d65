"""TFRecord files of tf.train.Examples: each feature is a column.

Nothing in a file says which features its records have. So the first records of each file do: a feature of which all of
them have one value is a column of values; if all have the same number, of arrays of that length; else of lists, empty
where a record has none. A record that does not fit is Misfit when it is read, unless `types` has settled it.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from strata.data.columnar import arrow
from strata.data.damage import Misfit
from strata.data.files import File
from strata.data.formats.base import BLOCK_BYTES, Block, FileIndex, Numbers, check_block_bytes, file_index
from strata.data.formats.examples import BYTES, FLOATS, INTS, KINDS, Examples, Lists
from strata.data.formats.records import SUFFIXES, Records, read_records, record_blocks
from strata.data.schemas import Found, differ
from strata.errors import InvalidInput
from strata.texts import counted

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_RECORDS = 256
"""Of each file, and in its first block: those that say what its features are."""
FEATURES = b"features"
"""In the metadata of a schema: the names of all features of the dataset, where only some are columns that are read."""

_TYPE = re.compile(r"(bytes|float|int64)(?:\[(\d{0,9})\])?")


class TFExample(msgspec.Struct, frozen=True, tag="tfexample"):
    """Records of TensorFlow that are tf.train.Examples.

    types: of features that the first records do not show as they are: `{"tokens": "int64[]", "box": "float[4]"}`. They
        are `bytes`, `float` or `int64` for one value in each record, with `[4]` for so many, with `[]` for any number.
    """

    types: dict[str, str] = {}
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        check_block_bytes(self.block_bytes)
        for name, said in self.types.items():
            found = _TYPE.fullmatch(said)
            if found is None or found[2] == "0":
                example = "int64, float[4], bytes[]"
                raise InvalidInput(f"types of tfexample: {name!r} cannot be {said!r}; what can be is like {example}")

    @property
    def suffixes(self) -> tuple[str, ...]:
        return SUFFIXES

    def merge(self, found: Found) -> "pa.Schema":
        pa = arrow()
        types: dict[str, tuple[Any, str]] = {}
        files, seen = 0, dict[str, int]()
        for path, schema in found:
            files += 1
            for field in schema:
                known, where = types.get(field.name, (field.type, path))
                if _element(known) != _element(field.type):
                    raise differ([(field.name, known, field.type)], where, path)
                types[field.name] = (known if known == field.type else pa.list_(_element(known))), where
                seen[field.name] = seen.get(field.name, 0) + 1
        given = self._given()
        merged = {name: kind if seen[name] == files else pa.list_(_element(kind)) for name, (kind, _) in types.items()}
        columns = sorted((merged | given).items())
        return pa.schema(columns, metadata={FEATURES: msgspec.json.encode([name for name, _ in columns])})

    def index(self, file: File) -> FileIndex:
        blocks, seal = record_blocks(file, self.block_bytes)
        return file_index(blocks, self._first(file, blocks[0]) if blocks[0].rows else None, seal)

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        examples = Examples(read_records(file, block))
        _check_known(examples, schema.metadata or {})
        rows = {"": arrow().nulls(examples.count)}  # without columns the rows are counted all the same
        columns = {field.name: _column(examples, field.name, field.type) for field in schema}
        return arrow().table(rows | columns).select(schema.names)

    def _first(self, file: File, block: Block) -> "pa.Schema":
        """What the first records of a file say."""
        data, starts, ends = read_records(file, block)
        examples, given = Examples(Records(data, starts[:FIRST_RECORDS], ends[:FIRST_RECORDS])), self._given()
        found = ((name, examples.lists(name)) for name in examples.names if name not in given)
        types = {name: _type_of(lists) for name, lists in found if lists is not None}
        return arrow().schema([*(types | given).items()])

    def _given(self) -> dict[str, Any]:
        return {name: _named(said) for name, said in self.types.items()}


def _named(said: str) -> Any:
    found = _TYPE.fullmatch(said)
    assert found is not None, "it was looked at when the format was made"
    element = next(_type(kind) for kind, name in KINDS.items() if name == found[1])
    if found[2] is None:
        return element
    return arrow().list_(element, int(found[2]) if found[2] else -1)


def _type(kind: int) -> Any:
    pa = arrow()
    return {BYTES: pa.binary(), FLOATS: pa.float32(), INTS: pa.int64()}[kind]


def _type_of(lists: Lists) -> Any:
    first = int(lists.counts[0])
    if not first or np.any(lists.counts != first):
        return arrow().list_(_type(lists.kind))
    return _type(lists.kind) if first == 1 else arrow().list_(_type(lists.kind), first)


def _is_list(kind: Any) -> bool:
    """Of any length."""
    return bool(arrow().types.is_list(kind))


def _is_array(kind: Any) -> bool:
    return bool(arrow().types.is_fixed_size_list(kind))


def _element(kind: Any) -> Any:
    return kind.value_type if _is_list(kind) or _is_array(kind) else kind


def _check_known(examples: Examples, metadata: Mapping[bytes, bytes]) -> None:
    """That the dataset has the features of these records: none is left out silently."""
    if FEATURES not in metadata:
        return
    known = {*msgspec.json.decode(metadata[FEATURES])}
    for name in examples.names:
        if name not in known and (row := examples.row_with(name)) is not None:
            kind = KINDS[lists.kind] if (lists := examples.lists(name)) else ""
            raise Misfit(row, f"has {name!r}, which the first records have not. {_settle(name, kind)}")


def _column(examples: Examples, name: str, kind: Any) -> "pa.Array":
    pa = arrow()
    lists = examples.lists(name)
    if lists is not None and _type(lists.kind) != _element(kind):
        row = int(np.flatnonzero(lists.is_there)[0])
        raise Misfit(row, f"has {KINDS[lists.kind]} as {name!r}, and others {_element(kind)}. Write one of them again")
    counts = np.zeros(examples.count, np.int64) if lists is None else lists.counts
    if not _is_list(kind):
        _check_counts(counts, name, kind)
    values = pa.array([], _element(kind)) if lists is None else lists.values
    if _is_list(kind):
        return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), values, type=kind)
    return pa.FixedSizeListArray.from_arrays(values, type=kind) if _is_array(kind) else values


def _check_counts(counts: Numbers, name: str, kind: Any) -> None:
    expected = kind.list_size if _is_array(kind) else 1
    other = np.flatnonzero(counts != expected)
    if len(other):
        row = int(other[0])
        had = counted(int(counts[row]), "value") if counts[row] else "nothing"
        element = next(said for number, said in KINDS.items() if _type(number) == _element(kind))
        raise Misfit(row, f"has {had} as {name!r}, and the first records have {expected}. {_settle(name, element)}")


def _settle(name: str, kind: str) -> str:
    return f"If that is as it should be, read it with format_of('tfexample', types={{{name!r}: '{kind}[]'}})"
