"""Advisory locks on open files: the kernel lets go of them when the process dies, however it dies."""

import errno
import time
from typing import Any

_fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # not on Windows
    _fcntl = None

_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_POLL_SECONDS = 0.002


def try_lock(fd: int) -> bool | None:
    """Whether the lock is now ours; None where files cannot be locked."""
    try:
        if _fcntl is not None:
            _fcntl.flock(fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        else:
            _windows_lock(fd)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


def lock(fd: int) -> bool:
    """Wait for the lock; False where files cannot be locked. Closing the file gives it back."""
    if _fcntl is not None:
        try:
            _fcntl.flock(fd, _fcntl.LOCK_EX)
        except OSError:
            return False
        return True
    while (locked := try_lock(fd)) is False:
        time.sleep(_POLL_SECONDS)
    return bool(locked)


def _windows_lock(fd: int) -> None:
    import msvcrt

    system: Any = msvcrt
    system.locking(fd, system.LK_NBLCK, 1)
