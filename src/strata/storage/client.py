"""obstore, in the copy that works in this process.

Its threads start with the first request and do not exist in a forked child, where every call would wait for ever. A
child (a DataLoader worker, say) therefore loads the library once more under its own inode, which gives it threads of
its own; that takes some 15 ms, once.
"""

import atexit
import importlib
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from typing import Any

from strata.errors import StrataError

_LIBRARY = "obstore._obstore"
_LAST_WORDS_SECONDS = 0.05


class _Client:
    """What this process has loaded, and from which file its first ancestor loaded it."""

    def __init__(self, origin: str = "") -> None:
        self.lock = threading.Lock()
        self.module: Any = None
        self.origin = origin


_client = _Client()


def obstore() -> Any:
    """The module; the same one for as long as this process lives."""
    if _client.module is None:
        with _client.lock:
            if _client.module is None:
                _client.module = _load_copy(_client.origin) if _client.origin else _load()
                _client.origin = _client.origin or str(sys.modules[_LIBRARY].__file__)
                # A thread of its that still tidies up after the last answer while Python ends would abort the process.
                atexit.register(time.sleep, _LAST_WORDS_SECONDS)
    return _client.module


def _forget() -> None:
    global _client  # noqa: PLW0603  the child's own: neither the lock nor the threads of the parent live in it
    _client = _Client(_client.origin)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _load() -> Any:
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ImportError as error:
        raise StrataError(f"object stores need the obstore package: pip install obstore ({error})") from None


def _load_copy(origin: str) -> Any:
    """A second library in one process: the loader knows libraries by inode, so the file is copied."""
    with _copied(origin) as path:
        for name in [name for name in sys.modules if name.split(".")[0] == "obstore"]:
            del sys.modules[name]
        finder = _CopyFinder(path)
        sys.meta_path.insert(0, finder)
        try:
            return _load()
        finally:
            sys.meta_path.remove(finder)


@contextmanager
def _copied(origin: str) -> Iterator[str]:
    """In memory where that can be had: a temporary folder may be mounted without the right to run code."""
    with open(origin, "rb") as library:
        content = library.read()
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("obstore"), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(content)
        file.flush()
        yield file.name


class _CopyFinder:
    """Finds the library in its copy, and nothing else."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != _LIBRARY:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=ExtensionFileLoader(name, self._path))
