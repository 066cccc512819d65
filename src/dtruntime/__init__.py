"""Strata's public names under its older name.

`from dtruntime import X` gives the very object that `from strata import X` gives.
"""

from typing import TYPE_CHECKING

import strata
from strata import __all__

__version__ = strata.__version__

if TYPE_CHECKING:
    from strata import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(strata, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
