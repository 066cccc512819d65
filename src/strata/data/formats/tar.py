"""The members of a tar, by their headers alone. What has no place in a dataset (links, sparse files) is refused.

Headers are those of POSIX (ustar and pax) and GNU. An archive ends with a block of zeros: one without was cut short,
and nobody could tell how much is missing.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from strata.data.damage import Damage

RECORD = 512
MAX_NAME_BYTES = 1 << 20
MAX_PADDING_BYTES = 1 << 20

_FILE, _NO_FILE = b"0\x007", b"3456"
_ZEROS = bytes(RECORD)


class Source(Protocol):
    """Bytes by their place."""

    @property
    def size(self) -> int: ...

    def at(self, start: int, length: int) -> memoryview: ...


class Member(NamedTuple):
    """A file in a tar. `header` is where the first header that is about it begins."""

    name: str
    header: int
    start: int
    size: int

    @property
    def next(self) -> int:
        return self.start + _padded(self.size)


def members(source: Source, *, whole: bool) -> Iterator[Member]:
    """Those of a whole archive, or of a stretch of it that begins with a header and ends with a member."""
    at, header = 0, 0
    name: str | None = None
    size: int | None = None
    while at < source.size:
        record = source.at(at, RECORD)
        if record == _ZEROS:
            if not whole or name is not None or size is not None:
                raise Damage(f"zeros are at byte {at}, where a member should be")
            _check_padding(source, at)
            return
        kind, own_name, own_size = _header(record, at)
        data, padded = at + RECORD, _padded(own_size)
        if kind in b"Lxg" or kind == b"K":
            if own_size > MAX_NAME_BYTES:
                raise Damage(f"the header at byte {at} says that a name has {own_size} bytes")
            said_name, said_size = _said(kind, bytes(source.at(data, own_size)), at)
            name, size = said_name or name, size if said_size is None else said_size
            at = data + padded
            continue
        name, size = own_name if name is None else name, own_size if size is None else size
        if kind in _NO_FILE:
            size = 0
        member = Member(name, header, data, size)
        if member.next > source.size:
            raise Damage(f"{name!r} should end at byte {member.next}, and the archive ends at {source.size}")
        if kind in _FILE and not name.endswith("/"):
            yield member
        elif kind not in _NO_FILE and kind not in _FILE:
            raise Damage(f"{name!r} is of kind {kind!r}: links, sparse files and the like are not read")
        at = header = member.next
        name = size = None
    if name is not None or size is not None:
        raise Damage("it ends after the first header of a member")
    if whole and source.size:
        raise Damage("it has no end mark: it was cut short")


def _padded(size: int) -> int:
    return -(-size // RECORD) * RECORD


def _check_padding(source: Source, at: int) -> None:
    """Behind the end nothing may follow: the samples of archives that were joined would be lost."""
    left = source.size - at
    if left > MAX_PADDING_BYTES or any(source.at(at, left)):
        raise Damage(f"something follows its end mark at byte {at}. Were several archives joined? Name each by itself")


def _header(record: memoryview, at: int) -> tuple[bytes, str, int]:
    """What kind of member it is, its name and its size."""
    raw = bytes(record)
    said = _number(raw[148:156], at)
    if said != sum(raw) - sum(raw[148:156]) + 8 * 32:
        raise Damage(f"the header at byte {at} is not one: its checksum is wrong")
    name = raw[:100].partition(b"\0")[0]
    if raw[257:263] == b"ustar\0" and (prefix := raw[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    return raw[156:157], _text(name, at), _number(raw[124:136], at)


def _number(field: bytes, at: int) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    if digits.strip(b"01234567"):
        raise Damage(f"the header at byte {at} is not one: {field!r} is no number")
    return int(digits, 8) if digits else 0


def _text(name: bytes, at: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Damage(f"the member at byte {at} has a name that is not valid text: {name[:200]!r}") from None


def _said(kind: bytes, data: bytes, at: int) -> tuple[str | None, int | None]:
    """The name and the size that a header says of the next member."""
    if kind == b"L":
        return _text(data.partition(b"\0")[0], at), None
    if kind == b"K":
        return None, None
    said = dict(_pax(data, at))
    if any(key.startswith(b"GNU.sparse") for key in said):
        raise Damage(f"the member at byte {at} is a sparse file, which is not read")
    if kind == b"g" and (b"path" in said or b"size" in said):
        raise Damage(f"the header at byte {at} gives all members one name or size")
    name = _text(said[b"path"], at) if b"path" in said else None
    size = said.get(b"size")
    if size is not None and (not size.isdigit() or len(size) > 19):
        raise Damage(f"the header at byte {at} says a size that is no number")
    return name, None if size is None else int(size)


def _pax(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Records of `length key=value\\n`."""
    position = 0
    while position < len(data):
        digits, space, _ = data[position : position + 8].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[position + len(digits) + 1 : position + length]
        key, equals, value = record.partition(b"=")
        if not space or length <= len(digits) + 1 or not equals or not record.endswith(b"\n"):
            raise Damage(f"the header at byte {at} is not one of pax")
        yield key, value[:-1]
        position += length
