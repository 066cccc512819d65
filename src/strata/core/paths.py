"""The path of a dataset as it may be shown: without the keys and signatures that a URL can hold.

A path is whatever its readers understand. So nothing is parsed that a hostile or a broken URL could make ambiguous:
where it cannot be told what is secret, all of it is hidden.
"""

import re

_ASKED = re.compile(r"[?#]")


def shown(path: str) -> str:
    """One path, or several of which each is a line."""
    return "\n".join(map(_shown, path.split("\n")))


def _shown(path: str) -> str:
    scheme, slashes, rest = path.partition("://")
    if not slashes:
        return _cut(path)
    hit = _ASKED.search(rest)
    if hit is not None and "@" in rest[hit.start() :]:
        return f"{scheme}://***"  # that may be a password with a question mark in it, as well as a signature
    _, at, behind = rest.rpartition("@")
    return f"{scheme}://***@{_cut(behind)}" if at else f"{scheme}://{_cut(rest)}"


def _cut(path: str) -> str:
    """Without what is asked for behind it."""
    hit = _ASKED.search(path)
    return path if hit is None else f"{path[: hit.end()]}***"
