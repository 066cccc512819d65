"""For short visits: a folder that was not yet a storage should not look like one afterwards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from strata.storage import filelock
from strata.storage.backend import StorageBackend
from strata.storage.keys import STAGING
from strata.storage.local import LocalStorage


@contextmanager
def leaving_no_trace(storage: StorageBackend) -> Iterator[None]:
    """Remove the staging folder of a local storage, and empty folders above, if they were not there before."""
    if not isinstance(storage, LocalStorage):
        yield
        return
    root = storage.root
    made = [folder for folder in (root / STAGING, root, *root.parents) if not os.path.exists(folder)]
    try:
        yield
    finally:
        if root / STAGING in made:
            _remove_lock(str(root / STAGING))
        for folder in made:
            try:
                os.rmdir(folder)
            except OSError:
                break  # somebody uses it by now, which is as good


def _remove_lock(staging: str) -> None:
    """Only while no other process holds it or stages anything."""
    lock = os.path.join(staging, "lock")
    with suppress(FileNotFoundError, NotADirectoryError):
        fd = os.open(lock, os.O_RDWR)
        try:
            if filelock.try_lock(fd) and os.listdir(staging) == ["lock"]:
                os.unlink(lock)
        finally:
            os.close(fd)
