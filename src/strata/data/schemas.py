"""Columns: whether those of files fit together, and what they are together where files say no types."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from strata.data.columnar import arrow, can_be_taken
from strata.data.damage import Damage
from strata.errors import DataMismatch

if TYPE_CHECKING:
    import pyarrow as pa

NAMED_COLUMNS = 10


Found = Iterable[tuple[str, "pa.Schema"]]
"""The columns of each file, with the path of it."""


def plain(schema: "pa.Schema") -> "pa.Schema":
    """Names and types alone: what else writers leave in a schema does not make files differ."""
    pa = arrow()
    twice = {name for name in schema.names if schema.names.count(name) > 1} if _repeats(schema.names) else set()
    if twice:
        raise Damage(f"several columns are named {min(twice)!r}: columns are known by their names")
    for field in schema:
        if not can_be_taken(field.type):
            raise Damage(f"column {field.name!r} is of type {field.type}, of which rows cannot be read one by one")
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _repeats(names: list[str]) -> bool:
    return len(set(names)) < len(names)


def same(found: Found) -> "pa.Schema":
    """For formats that say their types: those of the first file. A file that differs is DataMismatch."""
    first, first_path = arrow().schema([]), None
    for path, schema in found:
        if first_path is None:
            first, first_path = schema, path
        elif schema is not first:
            _check_same(first, first_path, schema, path)
    return first


def same_names(found: Found) -> "pa.Schema":
    """For text in columns: the same names everywhere, each of a type that all of its values can be read as."""
    pa = arrow()
    first_path, types = None, {}
    last = None
    for path, schema in found:
        if first_path is None:
            first_path, types = path, {field.name: field.type for field in schema}
        elif last is None or not schema.equals(last):
            _check_same(_nameless(types), first_path, _nameless(schema.names), path)
            types = {field.name: _wider(types[field.name], field.type) or pa.string() for field in schema}
        last = schema
    return pa.schema([*types.items()])


def union(found: Found) -> "pa.Schema":
    """For formats where not every file need have every column: all of them, in the order in which they first come."""
    pa = arrow()
    types: dict[str, tuple[Any, str]] = {}
    last = None
    for path, schema in found:
        if last is not None and schema.equals(last):
            continue
        last = schema
        for field in schema:
            known, where = types.get(field.name, (field.type, path))
            wider = _wider(known, field.type)
            if wider is None:
                raise differ([(field.name, known, field.type)], where, path)
            types[field.name] = wider, where
    return pa.schema([(name, kind) for name, (kind, _) in types.items()])


def _check_same(first: "pa.Schema", first_path: str, other: "pa.Schema", other_path: str) -> None:
    """Their order does not matter: columns are read by their names."""
    if first.equals(other):
        return
    differing = _differing(*({field.name: field.type for field in schema} for schema in (first, other)))
    if differing:
        raise differ(differing, first_path, other_path)


def _differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    names = dict.fromkeys([*one, *two])
    return [(name, one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)]


def told_columns(one: Mapping[str, str], two: Mapping[str, str]) -> str:
    """In what two sets of columns differ, each with the name of its type; empty if only in their order."""
    return _listed(_differing(one, two))


def differ(columns: list[tuple[str, Any, Any]], first_path: str, other_path: str) -> DataMismatch:
    where = first_path if first_path == other_path else f"{first_path} and {other_path}"
    return DataMismatch(
        f"the columns of {where} differ: {_listed(columns)}. All of one dataset must have "
        f"the same: write one of them again, or leave it out",
        file=other_path,
    )


def _listed(columns: list[tuple[str, Any, Any]]) -> str:
    told = [f"{name!r} ({_told(one)} / {_told(two)})" for name, one, two in columns]
    more = f" and {len(told) - NAMED_COLUMNS} more" if len(told) > NAMED_COLUMNS else ""
    return ", ".join(told[:NAMED_COLUMNS]) + more


def _told(kind: Any) -> str:
    return "absent" if kind is None else "there" if kind == arrow().null() else str(kind)


def _nameless(names: Iterable[str]) -> "pa.Schema":
    """These columns, of no type in particular."""
    pa = arrow()
    return pa.schema([(name, pa.null()) for name in names])


def _wider(one: Any, two: Any) -> Any:
    """A type that the values of both can be read as; None if there is none but text."""
    pa = arrow()
    kinds = pa.types
    if one.equals(two) or kinds.is_null(two):
        return one
    if kinds.is_null(one):
        return two
    if kinds.is_struct(one) and kinds.is_struct(two):
        return _wider_struct(one, two)
    if kinds.is_list(one) and kinds.is_list(two):
        value = _wider(one.value_type, two.value_type)
        return None if value is None else pa.list_(value)
    if {one, two} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if all(kinds.is_date(each) or kinds.is_timestamp(each) for each in (one, two)):
        return _wider_time(one, two)
    # What looks like a date is one, until a text comes that does not.
    return pa.string() if all(kinds.is_timestamp(each) or kinds.is_string(each) for each in (one, two)) else None


def _wider_struct(one: Any, two: Any) -> Any:
    types = {field.name: field.type for field in one}
    for field in two:
        types[field.name] = _wider(types.get(field.name, field.type), field.type)
    return None if None in types.values() else arrow().struct([*types.items()])


def _wider_time(one: Any, two: Any) -> Any:
    pa = arrow()
    times = [each for each in (one, two) if pa.types.is_timestamp(each)]
    if len({each.tz for each in times}) > 1:
        return pa.string()
    return max(times, key=lambda each: ["s", "ms", "us", "ns"].index(each.unit))


def row_bytes(schema: "pa.Schema") -> int:
    """The fewest bytes that one row takes in memory."""
    return sum(_value_bits(field.type) for field in schema) // 8


def _value_bits(kind: Any) -> int:
    kinds = arrow().types
    if kinds.is_struct(kind):
        return sum(_value_bits(field.type) for field in kind)
    if kinds.is_fixed_size_list(kind):
        return int(kind.list_size) * _value_bits(kind.value_type)
    if kinds.is_dictionary(kind):
        return int(kind.index_type.bit_width)
    if kinds.is_primitive(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_decimal(kind):
        return int(kind.bit_width)
    return 0 if kinds.is_null(kind) else 32
