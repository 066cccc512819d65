"""A while without garbage collection, for work that makes a hundred thousand objects and not one cycle.

Each look at them would find nothing, and all of them together take longer than the work itself.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_users = 0
_was_on = False


@contextmanager
def uncollected() -> Iterator[None]:
    """From any number of threads at once; collection goes on when the last of them is done, if it was on."""
    global _users, _was_on  # noqa: PLW0603  the collector itself is one for the whole process
    with _lock:
        if not _users:
            _was_on = gc.isenabled()
            gc.disable()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and _was_on:
                gc.enable()
