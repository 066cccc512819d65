"""The mark: how many records the journal holds for certain, and which came last, in a file beside it.

Nothing that was acknowledged may be missing when the journal is opened, and the journal alone cannot tell: the end of
a log that is damaged looks like one that was never written. So the count is written here whenever it grows: after the
records are flushed, and before anybody is told of them. It is not flushed itself, except when the journal is opened and
closed and with each snapshot. So the mark is exact after a kill. After a power cut it may say less than the journal
holds, but never more. The digest of the last batch tells a journal from another one that was put in its place.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

_UNKNOWN = "-" * 16
"""In place of a digest."""


class Marked(NamedTuple):
    """So many `records` are in the journal. With `in_log`, some may be in SQLite's log alone, which must be there.
    `last` is the digest of the batch that ends with the last of them, empty where that is not known."""

    records: int
    in_log: bool
    last: bytes = b""


def marked(file: Path) -> Marked | None:
    """None where the file says nothing: none of its kind is there, or it was not written whole."""
    try:
        text = file.read_text("ascii")
        count, where, last, _ = text.split()
        found = Marked(int(count), where == "log", b"" if last == _UNKNOWN else bytes.fromhex(last))
    except (FileNotFoundError, ValueError):
        return None
    return found if text == _line(found) else None


class Mark:
    """The file, to be written. `begin` comes first."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._marked = Marked(0, in_log=False)

    def begin(self, count: int, *, in_log: bool, last: bytes = b"") -> None:
        self._write(Marked(count, in_log, last))
        self.flush()

    def advance(self, count: int, last: bytes) -> None:
        """So many are flushed."""
        self._write(Marked(count, self._marked.in_log, last))

    def finish(self) -> None:
        """All of them are in the file itself."""
        self.begin(self._marked.records, in_log=False, last=self._marked.last)

    def flush(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, marked: Marked) -> None:
        self._marked = marked
        os.pwrite(self._descriptor, _line(marked).encode(), 0)


def _line(marked: Marked) -> str:
    """Of one length, so that what is written over it leaves nothing behind."""
    said = f"{marked.records:020} {'log ' if marked.in_log else 'file'} {marked.last.hex() or _UNKNOWN}"
    return f"{said} {hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}\n"
