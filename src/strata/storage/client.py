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
import time
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any

from strata.errors import StrataError

_LIBRARY = "obstore._obstore"
_LAST_WORDS_SECONDS = 0.05

_loaded: dict[int, Any] = {}


def obstore() -> Any:
    """The module; the same one for as long as this process lives."""
    module = _loaded.get(os.getpid())
    if module is None:
        module = _load_copy() if _loaded else _load()
        _loaded[os.getpid()] = module
        # A thread of its that still tidies up after the last answer, while Python ends, would abort the process.
        atexit.register(time.sleep, _LAST_WORDS_SECONDS)
    return module


def _load() -> ModuleType:
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ImportError as error:
        raise StrataError(f"object stores need the obstore package: pip install obstore ({error})") from None


def _load_copy() -> ModuleType:
    """A second library in one process: the loader knows libraries by inode, so the file is copied."""
    origin = sys.modules[_LIBRARY].__file__
    assert origin is not None
    for name in [name for name in sys.modules if name.split(".")[0] == "obstore"]:
        del sys.modules[name]
    with tempfile.NamedTemporaryFile(suffix=".so") as copy, open(origin, "rb") as library:
        while piece := library.read(1 << 20):
            copy.write(piece)
        copy.flush()
        finder = _CopyFinder(copy.name)
        sys.meta_path.insert(0, finder)
        try:
            return _load()
        finally:
            sys.meta_path.remove(finder)


class _CopyFinder:
    """Finds the library in its copy, and nothing else."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != _LIBRARY:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=ExtensionFileLoader(name, self._path))
