"""What a tensor in a tree is called: the path to it, as keys and positions joined by slashes.

A name is readable, unique, and safe in a file's header; `keys=` patterns and error messages speak of it.
"""

import re
from collections.abc import Iterable

_ESCAPED = re.compile(r"[/%@\x00-\x1f\x7f]")


def name_of(path: Iterable[object]) -> str:
    """Of a path of dict keys, fields and positions."""
    name = "/".join(_part(each) for each in path)
    return name.replace("__metadata__", "%5F_metadata__", 1) if name == "__metadata__" else name


def _part(key: object) -> str:
    """`@` separates a piece of a tensor from its offset, and a slash the parts of a path."""
    text = key if isinstance(key, str) else repr(key) if isinstance(key, bytes) else str(key)
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text) or "%"


class Names:
    """Gives each tensor a name of its own: the keys 0 and "0" of one dict would share theirs."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, path: Iterable[object]) -> str:
        wanted = name = name_of(path)
        number = 2
        while name in self._taken:
            name, number = f"{wanted}%{number}", number + 1
        self._taken.add(name)
        return name
