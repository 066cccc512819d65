"""Words and sizes as people read them at a glance."""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

_OTHER = re.compile(r"[^\x20-\x7e]")


def readable_bytes(size: float) -> str:
    """`512 B`, `1.5 MiB`; in powers of 1024."""
    if size < 1023.5:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:,.1f} PiB"


def moment(unix_seconds: float) -> str:
    """`2026-11-19 15:31:33` where this machine is; what somebody wrote may be no time at all."""
    try:
        return f"{datetime.fromtimestamp(unix_seconds):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return "a time that never was"


def counted(count: int, noun: str) -> str:
    """`1 object`, `2,000 objects`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def some_of(things: Sequence[object], most: int = 5) -> str:
    """`a, b, c`; of many the first, and how many more there are."""
    more = f" and {len(things) - most:,} more" if len(things) > most else ""
    return ", ".join(map(str, things[:most])) + more


def spans(numbers: Iterable[int]) -> list[str]:
    """`2`, `5 to 9`: runs of numbers that ascend, each as one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first} to {last}" for first, last in runs]


def printable(text: str) -> str:
    """The text on one line, with every character escaped that a terminal would obey or hide."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines. All but the first are indented: none passes for a line of Strata's own."""
    return "\n  ".join(map(printable, text.split("\n")))


def printable_json(document: bytes) -> bytes:
    """The same document with every character escaped that a terminal would obey or hide."""
    if document.isascii() and b"\x7f" not in document:
        return document
    return _OTHER.sub(_as_json, document.decode()).encode()


def _as_json(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]


def encodable(text: str) -> str:
    """Text that UTF-8 can hold: halves of characters, as in names of files that are no text, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
