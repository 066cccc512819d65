"""How many samples each file of a dataset has: the one place where the registry looks into files."""

import socket

from strata.data.indexing import Progress, index_dataset
from strata.data.paths import read
from strata.data.shardfiles import FileRows, ShardFiles
from strata.errors import NotFound


def counted_files(path: str, format: str, progress: Progress | None, otherwise: str) -> ShardFiles:
    """The files of a path, as `strata.data.paths` wrote it. Where nothing is there, the error ends with what to do
    `otherwise`."""
    try:
        return count(read(path), format, progress)
    except NotFound as error:
        raise NotFound(f"{error} on {socket.gethostname()}: {otherwise}") from error


def count(path: str | list[str], format: str, progress: Progress | None = None) -> ShardFiles:
    """Each file in the dataset's order, also one without samples."""
    index = index_dataset(path, format, progress=progress)
    rows = index.file_rows().tolist()
    return ShardFiles([FileRows(index.file(number).path, each) for number, each in enumerate(rows)], index.fingerprint)
