"""The plainest durable writes there are, to compare with: no errors handled, nobody to be stopped by."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strata.storage.direct import ALIGNMENT, O_DIRECT, Block, aligned

WINDOW_BYTES = 8 << 20

_own: Any = threading.local()


def bare_direct(target: Path, size: int) -> None:
    """As fast as the disk goes from this thread: whole blocks from one buffer, again and again."""
    window = _window()

    def fill(fd: int) -> None:
        for start in range(0, size, WINDOW_BYTES):
            whole = -(-min(WINDOW_BYTES, size - start) // ALIGNMENT) * ALIGNMENT
            os.pwrite(fd, window[:whole].data, start)
        os.ftruncate(fd, size)

    _durably(target, O_DIRECT, fill)


def buffered(target: Path, data: Block) -> None:
    """What one writes without a second thought: through the page cache, then fsync."""

    def fill(fd: int) -> None:
        done = 0
        while done < len(data):
            done += os.write(fd, data[done:].data)

    _durably(target, 0, fill)


def _window() -> Block:
    if not hasattr(_own, "window"):
        _own.window = aligned(WINDOW_BYTES)
        _own.window[:] = 7
    window: Block = _own.window
    return window


def _durably(target: Path, flags: int, fill: Callable[[int], None]) -> None:
    staged = f"{target}.part"
    fd = os.open(staged, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | flags, 0o666)
    fill(fd)
    os.fsync(fd)
    os.close(fd)
    os.rename(staged, target)
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
