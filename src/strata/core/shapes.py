"""The shapes of events: every field holds what its declaration says, before any rule looks at it.

Python does not check this by itself, and a journal that holds a number where a name belongs can never be replayed. What
the values mean is for the rules; this is about types, about text that has bytes, and about numbers that fit 64 bits.
"""

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from strata.core.events import Event
from strata.errors import InvalidInput

MAX_TEXT = 4096
_LEAST, _MOST = -(2**63), 2**63 - 1

SPOKEN = {
    "job": "job_id",
    "worker": "worker_id",
    "dataset": "dataset_id",
    "barrier": "barrier_id",
    "expected": "expected_participants",
    "timeout_seconds": "timeout",
}
"""What callers call a field, where that differs."""

Check = Callable[[Any, str], None]


def check_shape(event: Event) -> None:
    """InvalidInput if a field does not hold what it is declared to hold."""
    kind = type(event)
    checks = _checks.get(kind)
    if checks is None:
        checks = _checks[kind] = _of_struct(kind)
    for name, spoken, check in checks:
        value = getattr(event, name)
        # Most fields are short names and numbers; a call for each of them would double the cost of a heartbeat.
        if type(value) is str and check is _text and len(value) <= MAX_TEXT and value.isascii():
            continue
        if type(value) is int and check is _integer and _LEAST <= value <= _MOST:
            continue
        check(value, spoken)


_checks: dict[type, list[tuple[str, str, Check]]] = {}


def _of_struct(kind: type) -> list[tuple[str, str, Check]]:
    return [(name, SPOKEN.get(name, name), _of(hint)) for name, hint in get_type_hints(kind).items()]


def _of(hint: Any) -> Check:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType and NoneType in inner:
        return _optional(_of(next(kind for kind in inner if kind is not NoneType)))
    if origin is Literal:
        return _one_of(inner)
    if origin is list:
        return _list(_of(inner[0]))
    if origin is dict:
        return _dict(_of(inner[0]), _of(inner[1]))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint)
    return _PLAIN[hint]


def _wrong(value: Any, what: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"{what} must be {wanted}, not {type(value).__name__} ({repr(value)[:80]})")


def _text(value: Any, what: str) -> None:
    if type(value) is not str:
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    if len(value) > MAX_TEXT:
        raise InvalidInput(f"{what} has {len(value)} characters; at most {MAX_TEXT} are kept")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{what} is not valid text: {value[:80]!r}") from None


def _integer(value: Any, what: str) -> None:
    if type(value) is not int:
        raise _wrong(value, what, "an integer")
    if not _LEAST <= value <= _MOST:
        raise InvalidInput(f"{what} must fit 64 bits, not {value}")


def _flag(value: Any, what: str) -> None:
    if type(value) is not bool:
        raise _wrong(value, what, "True or False")


def _number(value: Any, what: str) -> None:
    if type(value) is int:
        _integer(value, what)
    elif type(value) is not float:
        raise _wrong(value, what, "a number")


_PLAIN: dict[Any, Check] = {str: _text, int: _integer, bool: _flag, float: _number}


def _one_of(choices: tuple[Any, ...]) -> Check:
    def one_of(value: Any, what: str) -> None:
        if value not in choices:
            raise _wrong(value, what, f"one of {', '.join(map(str, choices))}")

    return one_of


def _optional(check: Check) -> Check:
    def optional(value: Any, what: str) -> None:
        if value is not None:
            check(value, what)

    return optional


def _list(check: Check) -> Check:
    def each(value: Any, what: str) -> None:
        if type(value) is not list:
            raise _wrong(value, what, "a list")
        for item in value:
            check(item, f"an item of {what}")

    return each


def _dict(check_key: Check, check_value: Check) -> Check:
    def each(value: Any, what: str) -> None:
        if type(value) is not dict:
            raise _wrong(value, what, "a dict")
        for key, item in value.items():
            check_key(key, f"a key of {what}")
            check_value(item, f"{what}[{key!r}]")

    return each


def _struct(kind: type[msgspec.Struct]) -> Check:
    checks = _of_struct(kind)

    def fields(value: Any, what: str) -> None:
        if type(value) is not kind:
            raise _wrong(value, what, kind.__name__)
        for name, spoken, check in checks:
            check(getattr(value, name), f"{spoken} of {what}")

    return fields
