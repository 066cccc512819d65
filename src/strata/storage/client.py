"""obstore, in the copy that works in this process: its threads do not live on in a forked child."""

import atexit
import importlib
import time
from typing import Any

from strata.errors import StrataError
from strata.forks import NativePackage

_LAST_WORDS_SECONDS = 0.05


def _load() -> Any:
    try:
        importlib.import_module("obstore.store")
        module = importlib.import_module("obstore")
    except ImportError as error:
        raise StrataError(f"object stores need the obstore package: pip install obstore ({error})") from None
    # A thread of its that still tidies up after the last answer while Python ends would abort the process.
    atexit.register(time.sleep, _LAST_WORDS_SECONDS)
    return module


obstore = NativePackage("obstore._obstore", _load).module
