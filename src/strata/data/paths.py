"""The path of a dataset as the coordinator keeps it: one text, the same for everybody who means the same files.

A list is its paths, one on each line. What is said relative to this process's folder is made absolute, since others are
in other folders; whether anything is there is not asked, since it may be another machine's.
"""

import os
import posixpath
from collections.abc import Sequence
from typing import TypeAlias

from strata.errors import InvalidInput

MAX_CHARS = 64 << 10

PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Sequence[PathLike]
"""Of sequences, a list or a tuple."""


def written(path: Paths) -> str:
    """A path, or a list of them, as one text."""
    paths = path if isinstance(path, list | tuple) else [path]
    text = "\n".join(map(_absolute, paths))
    if not text:
        raise InvalidInput("path must name a file, a folder, a pattern, or a list of those: it is empty")
    if len(text) > MAX_CHARS:
        raise InvalidInput(
            f"path has {len(text):,} characters, and at most {MAX_CHARS:,} are kept: name a folder or a pattern, such "
            "as /data/images/*.parquet, instead of every file"
        )
    return text


def read(text: str) -> str | list[str]:
    """What `written` was given: a list where it is one of several paths."""
    paths = text.split("\n")
    return paths if len(paths) > 1 else text


def _absolute(path: object) -> str:
    said = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(said, str) or not said or not said.isprintable():
        raise InvalidInput(f"a dataset's path must be text of one line, a path, or a list of those, not {said!r}")
    if "://" in said:
        return said.rstrip("/") if said.split("://")[1].strip("/") else said
    # Not `abspath` for what is absolute: on another system it would put a drive before it.
    return posixpath.normpath(said) if said.startswith("/") else os.path.abspath(os.path.expanduser(said))
