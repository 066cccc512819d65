"""How much room there is on a disk."""

import os
import shutil

from strata.checkpoint.watched import WatchedStorage
from strata.storage import LocalStorage, StorageBackend


async def free_bytes(storage: StorageBackend) -> int | None:
    """None where nobody can say: on anything but a disk of this machine."""
    if isinstance(storage, WatchedStorage):
        storage = storage.inner
    if not isinstance(storage, LocalStorage):
        return None
    root = str(storage.root)
    return await storage.run("", "look at", lambda job: _free(root))


def _free(path: str) -> int:
    while not os.path.isdir(path) and os.path.dirname(path) != path:  # the root is made by the first write
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free
