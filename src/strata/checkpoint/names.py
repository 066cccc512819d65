"""What a tensor in a tree is called: the path to it, as keys and positions joined by slashes.

A name is readable, unique, and safe in a file's header; `keys=` patterns and error messages speak of it.
"""

import re
from functools import lru_cache

ROOT = "%"
"""A state that is an array itself."""
_ESCAPED = re.compile(r"[/%@\x00-\x1f\x7f]")
_RESERVED = "__metadata__"


def below(name: str, key: object) -> str:
    """The name of what lies under this key, field or position of what is called so."""
    part = _part(key) if isinstance(key, str) else _escaped(repr(key) if isinstance(key, bytes) else str(key))
    return f"{name}/{part}" if name else part


@lru_cache(maxsize=1 << 17)
def _part(key: str) -> str:
    return _escaped(key)


def _escaped(text: str) -> str:
    """`@` separates a piece of a tensor from its offset, and a slash the parts of a path."""
    if text == _RESERVED:
        return "%5F_metadata__"
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text) or "%"


class Names:
    """Gives each tensor a name of its own: the keys 0 and "0" of one dict would share theirs."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}%{number}", number + 1
        self._taken.add(name)
        return name
