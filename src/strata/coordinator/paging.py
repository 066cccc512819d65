"""Pages of a list that changes while somebody reads it: a cursor names the last item that was given, not its place."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from strata.errors import NotFound

T = TypeVar("T")
Key = tuple[str | int | bool, ...]


def page(items: Iterable[T], key: Callable[[T], Key], cursor: str, limit: int) -> tuple[list[T], str | None]:
    """Items after the cursor, and the cursor of the next page; `items` are in the order of their keys."""
    after = _key(cursor)
    found: list[T] = []
    for item in items:
        if after is not None and not _later(key(item), after):
            continue
        if len(found) == limit:
            return found, _cursor(key(found[-1]))
        found.append(item)
    return found, None


def _cursor(key: Key) -> str:
    return urlsafe_b64encode(msgspec.json.encode(key)).decode()


def _key(cursor: str) -> Key | None:
    if not cursor:
        return None
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor), type=Key)
    except (NotBase64, msgspec.DecodeError, ValueError) as error:
        raise NotFound(f"there is no page {cursor[:80]!r}: give the cursor from the page before") from error


def _later(key: Key, after: Key) -> bool:
    try:
        return key > after
    except TypeError:
        raise NotFound("this cursor belongs to another list") from None
