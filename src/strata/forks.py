"""Native libraries that work in this process, also after a fork.

Some libraries have threads of their own, which do not exist in a forked child (a DataLoader worker, say): every call
there would wait for ever. A child therefore loads such a library once more under its own inode, which gives it threads
of its own. That takes some tens of milliseconds, once, and only if the child uses it.
"""

import importlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from typing import Any


class NativePackage:
    """A Python package over one native library, such as `grpc` over `grpc._cython.cygrpc`."""

    def __init__(self, library: str, load: Callable[[], Any]) -> None:
        self._library = library
        self._load = load
        self._lock = threading.Lock()
        self._module: Any = None
        self._origin = ""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def module(self) -> Any:
        """The package; the same one for as long as this process lives."""
        if self._module is None:
            with self._lock:
                if self._module is None:
                    self._module = self._load_copy() if self._origin else self._load()
        return self._module

    def _forget(self) -> None:
        """In a child: neither the lock nor the threads of the parent live here, whoever loaded it there."""
        self._lock = threading.Lock()
        self._module = None
        loaded = sys.modules.get(self._library)
        if loaded is not None and not self._origin:
            self._origin = str(loaded.__file__)

    def _load_copy(self) -> Any:
        """A second library in one process: the loader knows libraries by inode, so the file is copied."""
        package = self._library.split(".")[0]
        with _copied(self._origin) as path:
            for name in [name for name in sys.modules if name.split(".")[0] == package]:
                del sys.modules[name]
            finder = _CopyFinder(self._library, path)
            sys.meta_path.insert(0, finder)
            try:
                return self._load()
            finally:
                sys.meta_path.remove(finder)


@contextmanager
def _copied(origin: str) -> Iterator[str]:
    """In memory where that can be had: a temporary folder may be mounted without the right to run code."""
    with open(origin, "rb") as library:
        content = library.read()
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("strata"), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/{os.getpid()}/fd/{memory.fileno()}"  # the loader goes by name as well
        return
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(content)
        file.flush()
        yield file.name


class _CopyFinder:
    """Finds the library in its copy, and nothing else."""

    def __init__(self, library: str, path: str) -> None:
        self._library, self._path = library, path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._library:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=ExtensionFileLoader(name, self._path))
