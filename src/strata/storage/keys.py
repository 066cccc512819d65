"""What a key may look like: the same on every backend, so that what works on one works on all.

A key is relative and made of segments between slashes. Whatever could mean another object somewhere (`..`, an absolute
path, an empty segment, a backslash, a control character) is refused, and so is what some backend could not store.
"""

from strata.errors import InvalidInput

STAGING = ".strata-tmp"
"""The first segment under which the local backend keeps what is not yet an object."""

MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 240

_CONTROL = {*map(chr, range(32)), chr(127)}


def check_key(key: object) -> str:
    """The key itself, or InvalidInput saying what is wrong with it."""
    if not isinstance(key, str):
        raise InvalidInput(f"a key must be a string, not {type(key).__name__}")
    if not key:
        raise InvalidInput("a key must not be empty")
    if key.startswith("/"):
        raise _wrong(key, "it is absolute; keys are relative to the storage's root")
    segments = key.split("/")
    for segment in segments:
        _check_segment(key, segment)
    if segments[0] == STAGING:
        raise _wrong(key, f"{STAGING} is where writes in progress are kept")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise _wrong(key, f"it has {len(key.encode())} bytes; at most {MAX_KEY_BYTES} can be stored")
    return key


def check_prefix(prefix: object) -> str:
    """A folder to list: "" for everything, else a key that may end in one slash. Returned without it."""
    if isinstance(prefix, str) and not prefix:
        return ""
    return check_key(prefix.removesuffix("/") if isinstance(prefix, str) else prefix)


def join(prefix: str, key: str) -> str:
    """The key under a prefix, which may be empty."""
    return f"{prefix}/{key}" if prefix else key


def _check_segment(key: str, segment: str) -> None:
    if not segment:
        raise _wrong(key, "it has an empty segment")
    if segment in (".", ".."):
        raise _wrong(key, f"{segment!r} is not a segment")
    if "\\" in segment:
        raise _wrong(key, "it has a backslash; segments are separated by '/'")
    if not _CONTROL.isdisjoint(segment):
        raise _wrong(key, "it has a control character")
    try:
        size = len(segment.encode())
    except UnicodeEncodeError:
        raise _wrong(key, "it is not valid text") from None
    if size > MAX_SEGMENT_BYTES:
        raise _wrong(key, f"a segment has {size} bytes; at most {MAX_SEGMENT_BYTES} can be stored")


def _wrong(key: str, why: str) -> InvalidInput:
    shown = key if len(key) <= 200 else f"{key[:200]}…"
    return InvalidInput(f"{shown!r} cannot be a key: {why}")
