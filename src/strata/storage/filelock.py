"""Advisory locks on open files: the kernel lets go of them when the process dies, however it dies.

A lock belongs to the open file, and a forked child has that too: it would keep the lock for as long as it lives. So
what is locked is told to `keep`, and a child closes its copies first of all.
"""

import errno
import os
import time
from contextlib import suppress
from typing import Any

_fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # not on Windows
    _fcntl = None

_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_NONE_HERE = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK}
_POLL_SECONDS = 0.002

_kept: set[int] = set()


def keep(fd: int) -> int:
    """The file itself, which a forked child is to close."""
    _kept.add(fd)
    return fd


def close(fd: int) -> None:
    """Let go of the lock, also of any copy of the file in a child, and close it."""
    _kept.discard(fd)
    try:
        if _fcntl is not None:
            with suppress(OSError):
                _fcntl.flock(fd, _fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _close_copies() -> None:
    for fd in _kept:
        with suppress(OSError):
            os.close(fd)
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


def try_lock(fd: int) -> bool | None:
    """Whether the lock is now ours; None where files cannot be locked."""
    try:
        if _fcntl is not None:
            _fcntl.flock(fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        else:
            _windows_lock(fd)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _NONE_HERE:
            return None
        raise
    return True


def lock(fd: int) -> bool:
    """Wait for the lock; False where files cannot be locked."""
    if _fcntl is not None:
        try:
            _fcntl.flock(fd, _fcntl.LOCK_EX)
        except OSError as error:
            if error.errno in _NONE_HERE:
                return False
            raise
        return True
    while (locked := try_lock(fd)) is False:
        time.sleep(_POLL_SECONDS)
    return bool(locked)


def _windows_lock(fd: int) -> None:
    import msvcrt

    system: Any = msvcrt
    system.locking(fd, system.LK_NBLCK, 1)
