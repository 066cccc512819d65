"""The samples in the files of a dataset, counted: the one place where the registry looks at files.

What counts is `strata.data.counting.count(path, format, progress)`: for each file, in the dataset's order, its path and
how many samples it has. It is imported when it is first needed, since it brings the libraries that read the formats.
"""

import socket
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TypeAlias, cast

from strata.data.paths import read
from strata.data.shardfiles import FileRows, ShardFiles
from strata.errors import InvalidInput, NotFound

Progress: TypeAlias = Callable[[int, int, int], None]
"""Called with the files done, of how many, and the samples so far."""
Count: TypeAlias = Callable[[str | list[str], str, Progress | None], Iterable[FileRows]]

COUNTING = "strata.data.counting"


def counted_files(path: str, format: str, progress: Progress | None, otherwise: str) -> ShardFiles:
    """The files of a path, as `strata.data.paths` wrote it. Where they cannot be had, the error ends with what to do
    `otherwise`."""
    try:
        count = cast(Count, import_module(COUNTING).count)
    except ModuleNotFoundError as error:
        if error.name != COUNTING:
            raise
        raise InvalidInput(f"files cannot be looked into with this installation of Strata: {otherwise}") from error
    try:
        return ShardFiles(count(read(path), format, progress))
    except NotFound as error:
        raise NotFound(f"{error} on {socket.gethostname()}: {otherwise}") from error
