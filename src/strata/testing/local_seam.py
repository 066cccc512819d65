"""Where tests take hold of a `LocalStorage`: its work without its threads, and what it has found out of its disk."""

from strata.storage import LocalStorage
from strata.storage.backend import Data, byte_view
from strata.storage.staging import Job


class LocalSeam:
    """One storage, for tests."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage

    def write_here(self, path: str, data: Data) -> None:
        """As `write` does it, in this very thread: it raises what `write` raises."""
        storage, view = self._storage, byte_view(data)
        storage._attempt(path, "write", lambda job: storage._write(path, view, job, storage.replace), Job(None))

    @property
    def is_direct(self) -> bool:
        """Whether large writes still try to pass by the page cache."""
        return self._storage._direct
