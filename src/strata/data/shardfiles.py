"""Which files hold which shards.

Samples are numbered through the files in their order, and shards are cut from those numbers. The law: a file is given
to a rank only if all of its samples are that rank's; one with samples of two ranks is given to neither: it is an error.
"""

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.core.orders import ShardLayout
from strata.data.fingerprints import difference
from strata.data.index import DatasetIndex
from strata.errors import DataChanged, Refused
from strata.texts import counted

Indexes = NDArray[np.int64]


class FileRows(NamedTuple):
    """A file, as whoever opens it says its path, and how many samples it has."""

    path: str
    rows: int


class ShardFiles:
    """The files of one dataset, in their order. Those without samples belong to nobody."""

    def __init__(self, files: Iterable[FileRows]) -> None:
        self._files = [FileRows(*each) for each in files if each[1]]
        rows = np.array([each.rows for each in self._files], np.int64)
        self._ends: Indexes = np.cumsum(rows)
        self._starts: Indexes = self._ends - rows

    @property
    def total_samples(self) -> int:
        return int(self._ends[-1]) if self._files else 0

    def of_each(self, shards: Indexes, layout: ShardLayout) -> list[list[str]]:
        """For each of these shards, the files that its samples are in."""
        return [[self._files[file].path for file in files] for files in self._ranges(shards, layout)]

    def whole(self, shards: Indexes, layout: ShardLayout, whose: str) -> list[str]:
        """The files of all these shards, each once, in their order. Refused if one has samples of others, too."""
        firsts, lasts = self._starts // layout.shard_size, (self._ends - 1) // layout.shard_size
        before = np.zeros(layout.shard_count + 1, np.int64)
        before[shards + 1] = 1
        before = np.cumsum(before)
        theirs = before[lasts + 1] - before[firsts]
        split = np.flatnonzero((theirs > 0) & (theirs <= lasts - firsts))
        if len(split):
            raise Refused(self._shared(int(split[0]), before, layout, whose))
        return [self._files[file].path for file in dict.fromkeys(chain(*self._ranges(shards, layout)))]

    def _ranges(self, shards: Indexes, layout: ShardLayout) -> list[range]:
        starts = shards * layout.shard_size
        lasts = np.minimum(starts + layout.shard_size, layout.total_samples) - 1
        first, last = (np.searchsorted(self._ends, each, side="right") for each in (starts, lasts))
        return list(map(range, first.tolist(), (last + 1).tolist()))

    def _shared(self, file: int, before: Indexes, layout: ShardLayout, whose: str) -> str:
        start, end = int(self._starts[file]), int(self._ends[file])
        shards = np.arange(start // layout.shard_size, (end - 1) // layout.shard_size + 1)
        owned = np.diff(before)[shards] == 1
        told = (
            f"{self._files[file].path} would belong to two workers: it has samples {start} to {end - 1}, of which "
            f"shard {shards[owned][0]} is {whose} and shard {shards[~owned][0]} is not. Read this dataset with "
            "strata.data.Loader, which gives every worker its own samples wherever files begin and end"
        )
        size = self._common_size()
        return told + (f"; or register it with shard_size={size}, one shard for each file" if size else "")

    def _common_size(self) -> int:
        """How many samples all files have, but the last, which may have fewer; 0 if they differ."""
        sizes = {each.rows for each in self._files[:-1]} or {self._files[-1].rows}
        size = min(sizes)
        return size if len(sizes) == 1 and self._files[-1].rows <= size else 0


def check_same(dataset_id: str, registered: str, columns: str, index: DatasetIndex, path: str) -> None:
    """DataChanged if whoever registered a dataset found other files than these, or other columns. It names the first
    file that is another, with its samples, as far as the fingerprint tells that."""
    found = difference(registered, index, columns) if registered else None
    if found is not None:
        raise DataChanged(
            f"dataset {dataset_id!r} was registered when the files in {path} were others: {found.how} (fingerprint "
            f"{registered[:16]} then, {index.fingerprint[:16]} now). If that is what is meant, register it again with "
            "replace=True; else put back what was there",
            file=found.file or path,
            samples=found.samples,
        )


def check_total(dataset_id: str, registered: int, found: int, path: str) -> None:
    """DataChanged unless there are as many samples as were registered: shards would hold others than all think."""
    if found != registered:
        raise DataChanged(
            f"dataset {dataset_id!r} is registered with {counted(registered, 'sample')}, and the files in {path} hold "
            f"{found:,} now. If that is what is meant, register it again with replace=True; else put back what was "
            "there",
            file=path,
        )
