"""Words and sizes as people read them at a glance."""


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


def printable(text: str) -> str:
    """What others wrote, without anything that would move a cursor or begin a line."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
