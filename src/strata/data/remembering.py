"""What was read of files and will be needed again soon: footers, above all. A bounded memory, safe between threads."""

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """The values used last, as long as they are not larger than so many bytes together."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._found: dict[Hashable, tuple[T, int]] = {}
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._unlock)

    def get(self, key: Hashable, read: Callable[[], tuple[T, int]]) -> T:
        """The value, or what `read` gives: it and its size in bytes. Threads that race may both read."""
        with self._lock:
            if found := self._found.pop(key, None):
                self._found[key] = found  # again the last to go
                return found[0]
        value, size = read()
        with self._lock:
            if key not in self._found:
                self._found[key] = value, size
                self._bytes += size
                while self._bytes > self._most_bytes and len(self._found) > 1:
                    self._bytes -= self._found.pop(next(iter(self._found)))[1]
        return value

    def _unlock(self) -> None:
        """In a forked child nobody is there to give back what another thread of the parent had taken."""
        self._lock = threading.Lock()
