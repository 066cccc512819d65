"""How many samples each file of a dataset has: the one place where the registry looks into files."""

import socket
from functools import cached_property

from strata.data.fingerprints import columns_told
from strata.data.index import DatasetIndex
from strata.data.indexing import Progress, index_dataset
from strata.data.paths import read
from strata.data.registered import Share
from strata.data.shardfiles import FileRows, ShardFiles, check_same, check_total
from strata.errors import NotFound


class Counted:
    """The files of a dataset as they were found: what is registered of them, and which shards they hold."""

    def __init__(self, index: DatasetIndex) -> None:
        self._index = index
        self.fingerprint, self.columns = index.fingerprint, columns_told(index.schema)
        self.total_samples = index.rows

    @cached_property
    def files(self) -> ShardFiles:
        """Each in the dataset's order, also one without samples."""
        rows = self._index.file_rows().tolist()
        return ShardFiles(FileRows(self._index.file(number).path, each) for number, each in enumerate(rows))

    def check(self, share: Share) -> None:
        """DataChanged unless they are those that were registered."""
        check_same(share.dataset_id, share.fingerprint, share.columns, self._index, share.path)
        check_total(share.dataset_id, share.layout.total_samples, self.total_samples, share.path)


def counted_files(path: str, format: str, progress: Progress | None, otherwise: str) -> Counted:
    """The files of a path, as `strata.data.paths` wrote it. Where nothing is there, the error ends with what to do
    `otherwise`."""
    try:
        return count(read(path), format, progress)
    except NotFound as error:
        raise NotFound(f"{error} on {socket.gethostname()}: {otherwise}") from error


def count(path: str | list[str], format: str, progress: Progress | None = None) -> Counted:
    return Counted(index_dataset(path, format, progress=progress))
