"""Words and sizes as people read them at a glance."""

from collections.abc import Iterable, Sequence


def readable_bytes(size: float) -> str:
    """`512 B`, `1.5 MiB`; in powers of 1024."""
    if size < 1023.5:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:,.1f} PiB"


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
    """What others wrote, without anything that would move a cursor or begin a line."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
