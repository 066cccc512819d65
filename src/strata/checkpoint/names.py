"""What a tensor in a tree is called: the path to it, as keys and positions joined by slashes.

A name is readable, unique, and safe in a file's header; `keys=` patterns and error messages speak of it.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

ROOT = "%"
"""A state that is an array itself."""
_ESCAPED = re.compile(r"[/%@\x00-\x1f\x7f]")
_ESCAPE = re.compile(r"%([0-7][0-9A-F])")
_RESERVED = "__metadata__"


def below(name: str, key: object) -> str:
    """The name of what lies under this key, field or position of what is called so."""
    part = _part(key) if isinstance(key, str) else _escaped(str(key))
    return f"{name}/{part}" if name else part


@lru_cache(maxsize=1 << 17)
def _part(key: str) -> str:
    return _escaped(key)


def _escaped(text: str) -> str:
    """`@` separates a piece of a tensor from its offset, and a slash the parts of a path."""
    if text == _RESERVED:
        return "%5F_metadata__"
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text) or "%"


def _has_escaped(text: str) -> bool:
    """A search for single characters, which Python is ten times as fast at, finds nothing in most texts."""
    if "/" in text or "%" in text or "@" in text:
        return True
    return not text.isprintable() and _ESCAPED.search(text) is not None


def key_of(part: str) -> str:
    """The key that a part of a name stands for; the part itself, where no key has that name."""
    key = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), part)
    return key if _escaped(key) == part else part


class Names:
    """Gives each tensor a name of its own: the keys 0 and "0" of one dict would share theirs."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, wanted: str) -> str:
        taken = self._taken
        if wanted not in taken:
            taken.add(wanted)
            return wanted
        number = 2
        while f"{wanted}%{number}" in taken:
            number += 1
        return self.give(f"{wanted}%{number}")

    def give_all(self, name: str, keys: Mapping[str, object]) -> list[str] | None:
        """To what lies under all these keys of what is called so; None where that must be done one by one, since a key
        is escaped or a name is taken."""
        if "" in keys or _RESERVED in keys or _has_escaped("".join(keys)):
            return None
        wanted = [f"{name}/{key}" for key in keys] if name else list(keys)
        if not self._taken.isdisjoint(wanted):
            return None
        self._taken.update(wanted)
        return wanted
