"""Bytes to and from a file at the disk's own speed.

Large writes bypass the page cache (O_DIRECT), which wants memory and lengths in whole blocks: what is aligned is
written from where it lies, what is not passes through a few reused windows, which a thread of its own fills ahead of
the disk. Where a filesystem has no O_DIRECT the same file goes on with plain writes, synced as it grows, so that the
last sync has little left to do. Nothing here knows of keys or of atomicity.
"""

import errno
import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

fcntl: Any
try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

ALIGNMENT = 4096
WINDOW_BYTES = 16 << 20
WINDOWS_AHEAD = 3
FIRST_BYTES = 2 << 20
"""The disk waits for the first copy, so it is a short one."""
READ_BYTES = 1 << 20
DIRECT_FROM_BYTES = 1 << 20
SYNC_EVERY_BYTES = 64 << 20
WINDOWS_KEPT = 4
PIECES_AT_ONCE = 512
"""Of memory that one read is scattered over; systems take up to 1024."""

O_DIRECT = getattr(os, "O_DIRECT", 0)

Block: TypeAlias = NDArray[np.uint8]
Tick: TypeAlias = Callable[[int], None]
"""Told how many bytes were written just now. It may raise to stop the writing."""


class _Windows:
    """Aligned memory that is used again: fresh memory costs more than the copy into it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Block] = []

    def take(self) -> Block:
        with self._lock:
            if self._free:
                return self._free.pop()
        return aligned(WINDOW_BYTES)

    def give(self, window: Block) -> None:
        with self._lock:
            if len(self._free) < WINDOWS_KEPT:
                self._free.append(window)


def aligned(size: int) -> Block:
    """Memory that O_DIRECT can write from."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


_windows = _Windows()


def _forget_windows() -> None:
    global _windows  # noqa: PLW0603  a lock held by another thread at the fork would stay so in the child
    _windows = _Windows()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_windows)


def sync(fd: int) -> None:
    """To the medium itself, past the drive's own cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):  # some network mounts have only the ordinary one
                raise
    os.fsync(fd)


class FileSink:
    """A new, empty file that is filled from the front. Not safe between threads."""

    def __init__(self, fd: int, *, direct: bool) -> None:
        self.direct = direct and bool(O_DIRECT) and set_direct(fd, True)
        self.refused = direct and not self.direct
        self.size = 0
        self._fd = fd
        self._window: Block | None = None
        self._filled = 0
        self._unsynced = 0

    def write(self, data: memoryview, tick: Tick) -> None:
        """Append; it may stay in memory until `finish`."""
        if not self.direct:
            self.flush(tick)
            self._plain(data, self.size, tick)
            self.size += len(data)
            return
        if self._filled:
            data = self._fill(data, tick)
        whole = len(data) // ALIGNMENT * ALIGNMENT
        if whole >= DIRECT_FROM_BYTES:
            self._bulk(data[:whole], tick)
            self.size += whole
            data = data[whole:]
        while len(data):
            data = self._fill(data, tick)

    def finish(self, tick: Tick) -> None:
        """Everything written is in the file and on the disk."""
        self.flush(tick)
        self.release()
        sync(self._fd)

    def release(self) -> None:
        """Give back the memory."""
        if self._window is not None:
            _windows.give(self._window)
            self._window = None

    def flush(self, tick: Tick) -> None:
        """The window's bytes into the file: whole blocks, the last one padded, and the padding cut off again."""
        if not self._filled:
            return
        assert self._window is not None
        padded = -(-self._filled // ALIGNMENT) * ALIGNMENT
        self._window[self._filled : padded] = 0
        left = self._filled

        def tick_unpadded(count: int) -> None:
            nonlocal left
            count, left = min(count, left), max(0, left - count)
            tick(count)

        self._put(self._window[:padded], self.size - self._filled, tick_unpadded)
        os.ftruncate(self._fd, self.size)
        self._filled = 0

    def _fill(self, data: memoryview, tick: Tick) -> memoryview:
        if self._window is None:
            self._window = _windows.take()
        count = min(len(data), WINDOW_BYTES - self._filled)
        np.copyto(self._window[self._filled : self._filled + count], np.frombuffer(data[:count], np.uint8))
        self._filled += count
        self.size += count
        if self._filled == WINDOW_BYTES:
            self._put(self._window, self.size - WINDOW_BYTES, tick)
            self._filled = 0
        return data[count:]

    def _bulk(self, data: memoryview, tick: Tick) -> None:
        source = np.frombuffer(data, np.uint8)
        begin = self.size
        if source.ctypes.data % ALIGNMENT and len(source) > WINDOW_BYTES:
            self._copied_ahead(source, begin, tick)
            return

        def put(start: int) -> None:
            self._put(source[start : start + WINDOW_BYTES], begin + start, tick)

        _in_lanes(2, range(0, len(source), WINDOW_BYTES), put)

    def _copied_ahead(self, source: Block, begin: int, tick: Tick) -> None:
        """One thread only copies and this one only writes: two that did both would wait for each other at the file."""
        empty: SimpleQueue[Block | None] = SimpleQueue()
        full: SimpleQueue[Block] = SimpleQueue()
        cuts = list(pairwise([0, *range(FIRST_BYTES, len(source), WINDOW_BYTES), len(source)]))

        def fill() -> None:
            for start, end in cuts:
                window = empty.get()
                if window is None:
                    return
                np.copyto(window[: end - start], source[start:end])
                full.put(window[: end - start])

        windows = [_windows.take() for _ in range(min(WINDOWS_AHEAD, len(cuts)))]
        for window in windows:
            empty.put(window)
        filler = threading.Thread(target=fill, name="strata-copy", daemon=True)
        filler.start()
        try:
            for number, (start, _) in enumerate(cuts):
                self._put(full.get(), begin + start, tick)
                empty.put(windows[number % len(windows)])
        finally:
            empty.put(None)
            filler.join()
            for window in windows:
                _windows.give(window)

    def _put(self, block: Block, offset: int, tick: Tick) -> None:
        if not self.direct:
            self._plain(block.data, offset, tick)
            return
        window = None
        if block.ctypes.data % ALIGNMENT:
            window = _windows.take()
            np.copyto(window[: len(block)], block)
        try:
            written = os.pwrite(self._fd, (block if window is None else window[: len(block)]).data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # It took the flag and now refuses the write: some filesystems do. Nothing was written.
            set_direct(self._fd, False)
            self.direct, self.refused = False, True
            written = 0
        finally:
            if window is not None:
                _windows.give(window)
        if written:
            tick(written)
        if written < len(block):
            self._resume(block, offset, written, tick)

    def _resume(self, block: Block, offset: int, written: int, tick: Tick) -> None:
        """After a short write, which need not end on a block: the next one tells what is wrong, such as a full disk."""
        if self.direct and written % ALIGNMENT == 0:
            self._put(block[written:], offset + written, tick)
            return
        set_direct(self._fd, False)
        self.direct = False
        self._plain(block.data[written:], offset + written, tick)

    def _plain(self, data: memoryview, offset: int, tick: Tick) -> None:
        done = 0
        while done < len(data):
            count = _write_at(self._fd, data[done : done + WINDOW_BYTES], offset + done)
            done += count
            self._unsynced += count
            if self._unsynced >= SYNC_EVERY_BYTES:
                sync(self._fd)
                self._unsynced = 0
            tick(count)


def read_whole(fd: int, tick: Tick) -> bytes:
    """The whole file, from its start. It grows in place: bytes made of a buffer would need the memory twice."""
    whole, window = io.BytesIO(), memoryview(bytearray(READ_BYTES))
    while count := _read_at(fd, window, whole.tell()):
        whole.write(window[:count])
        tick(count)
    return whole.getvalue()


def read_into(fd: int, target: Block, offset: int, tick: Tick) -> int:
    """Fill the memory from there; fewer bytes than asked for mean the end of the file."""
    done = 0
    while done < len(target):
        count = _read_at(fd, target.data[done : done + WINDOW_BYTES], offset + done)
        if not count:
            break
        done += count
        tick(count)
    return done


def read_scattered(fd: int, targets: Iterable[memoryview], offset: int, tick: Tick) -> int:
    """Fill one after the other from there, many with each call; fewer bytes mean the end of the file.

    What is not in the page cache comes past it, which is faster and leaves to it what others need.
    """
    left, done = deque(targets), 0
    size = sum(map(len, left))
    if size >= DIRECT_FROM_BYTES and _is_cold(fd, offset, size) and set_direct(fd, True):
        try:
            return read_direct(fd, left, offset, tick)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the filesystem only said that it could
                raise
        set_direct(fd, False)
    while left:
        some, size = [], 0
        for view in islice(left, PIECES_AT_ONCE):
            some.append(view[: WINDOW_BYTES - size])
            size += len(some[-1])
            if size == WINDOW_BYTES:
                break
        count = _read_many_at(fd, some, offset + done)
        if not count:
            break
        done += count
        tick(count)
        while count:
            filled = min(count, len(left[0]))
            left[0] = left[0][filled:]
            count -= filled
            if not left[0]:
                left.popleft()
    return done


def _is_cold(fd: int, offset: int, size: int) -> bool:
    """Whether any of a few bytes in there would have to be waited for."""
    if not (O_DIRECT and hasattr(os, "RWF_NOWAIT")):
        return False
    byte = bytearray(1)
    for place in (offset, offset + size // 2, offset + size - 1):
        try:
            os.preadv(fd, [byte], place, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:  # a filesystem that cannot tell
            return False
    return False


def read_direct(fd: int, targets: Iterable[memoryview], offset: int, tick: Tick) -> int:
    """In whole blocks, by way of a window: neither the memory nor the place in the file need be aligned."""
    views, window = list(targets), _windows.take()
    wanted, done = sum(map(len, views)), 0
    number = used = 0
    try:
        while done < wanted:
            before = (offset + done) % ALIGNMENT
            room = min(len(window), -(-(before + wanted - done) // ALIGNMENT) * ALIGNMENT)
            count = _read_at(fd, window[:room].data, offset + done - before) - before
            if count <= 0:
                break
            count = min(count, wanted - done)
            number, used = _scatter(window[before : before + count], views, number, used)
            done += count
            tick(count)
    finally:
        _windows.give(window)
    return done


def _scatter(data: Block, views: list[memoryview], number: int, used: int) -> tuple[int, int]:
    """Over these, from there on; and how far they are filled now."""
    at = 0
    while at < len(data):
        view = views[number]
        count = min(len(data) - at, len(view) - used)
        np.frombuffer(view, np.uint8, count, used)[:] = data[at : at + count]
        at += count
        used += count
        if used == len(view):
            number, used = number + 1, 0
    return number, used


def read_all_into(fd: int, targets: list[Block], starts: list[int], lanes: int, tick: Tick) -> list[int]:
    """Fill each from its place, several at a time where that is worth a thread; and how much there was for each."""
    counts = [0] * len(targets)

    def read(number: int) -> None:
        counts[number] = read_into(fd, targets[number], starts[number], tick)

    worth = sum(map(len, targets)) // DIRECT_FROM_BYTES
    _in_lanes(max(1, min(lanes, worth)), range(len(targets)), read)
    return counts


def _in_lanes(lanes: int, numbers: range, work: Callable[[int], None]) -> None:
    """Do it for each number, so many at a time. The first error stops the rest and is raised here."""
    left = iter(numbers)
    take_turns = threading.Lock()
    errors: list[BaseException] = []

    def lane() -> None:
        try:
            while not errors:
                with take_turns:
                    number = next(left, None)
                if number is None:
                    return
                work(number)
        except BaseException as error:  # noqa: BLE001  raised below, in the caller's own thread
            errors.append(error)

    count = min(lanes, len(numbers)) - 1
    others = [threading.Thread(target=lane, name="strata-disk", daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    lane()
    for other in others:
        other.join()
    if errors:
        raise errors[0]


def _write_at(fd: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.write(fd, data)


def _read_at(fd: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [data], offset)
    os.lseek(fd, offset, os.SEEK_SET)
    found = os.read(fd, len(data))
    data[: len(found)] = found
    return len(found)


def _read_many_at(fd: int, views: list[memoryview], offset: int) -> int:
    return os.preadv(fd, views, offset) if hasattr(os, "preadv") else _read_at(fd, views[0], offset)


def set_direct(fd: int, direct: bool) -> bool:
    """Whether the file now is as asked for; a filesystem may not know O_DIRECT."""
    if fcntl is None:
        return not direct
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | O_DIRECT if direct else flags & ~O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True
