"""Making an index: every file's blocks, in parallel threads. Nothing is kept but the numbers."""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

from strata.core.permutation import MAX_SIZE
from strata.data.columnar import arrow
from strata.data.files import File
from strata.data.finding import PathLike, find_files
from strata.data.formats import AnyFormat, format_of
from strata.data.formats.base import FileIndex, Numbers
from strata.data.index import BlockTable, DatasetIndex, FileTable, told
from strata.errors import InvalidInput
from strata.storage.backend import StorageOptions

Progress: TypeAlias = Callable[[int, int, int], None]
"""Called with the files done, of how many, and the rows so far. From any thread, one at a time; it must not raise."""

THREADS = 16
"""At most: where files are remote, most of the time is waiting."""


def index_dataset(
    path: PathLike | Sequence[PathLike],
    format: str | AnyFormat,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    options: StorageOptions | None = None,
) -> DatasetIndex:
    """The index of the dataset at a path: a file, a folder, a pattern, or a list of those."""
    chosen = format_of(format)
    return index_files(
        find_files(path, suffixes=chosen.suffixes, options=options),
        chosen,
        threads=threads,
        progress=progress,
        options=options,
    )


def index_files(
    files: Sequence[File],
    format: str | AnyFormat,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    options: StorageOptions | None = None,
) -> DatasetIndex:
    """The index of these files, in this order."""
    chosen = format_of(format)
    if not files:
        raise InvalidInput("a dataset needs at least one file")
    found = _Indexing(chosen, files, progress).run(threads or min(THREADS, 2 * (os.cpu_count() or 1) + 2))
    rows = _joined([each.rows for each in found])
    if int(rows.sum()) > MAX_SIZE:
        raise InvalidInput(f"the dataset has {int(rows.sum())} rows; at most {MAX_SIZE} can be")
    schemas = ((file.path, each.schema) for file, each in zip(files, found, strict=True) if each.schema is not None)
    return DatasetIndex(
        chosen,
        chosen.merge(schemas),
        _table(files),
        BlockTable(
            np.array([len(each.rows) for each in found], np.int64),
            _joined([each.starts for each in found]),
            _joined([each.lengths for each in found]),
            rows,
        ),
        options=options,
    )


class _Indexing:
    """Threads that take one file after the other. The first error, in the order of files, is raised."""

    def __init__(self, format: AnyFormat, files: Sequence[File], progress: Progress | None) -> None:
        self._format, self._files, self._progress = format, files, progress
        self._next = itertools.count()
        self._found: list[FileIndex | None] = [None] * len(files)
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._done = self._rows = 0

    def run(self, threads: int) -> list[FileIndex]:
        with ThreadPoolExecutor(min(threads, len(self._files)), "strata-index") as pool:
            workers = [pool.submit(self._work) for _ in range(min(threads, len(self._files)))]
            try:
                for worker in workers:
                    worker.result()
            except BaseException as error:  # an interrupt: let the threads end before it goes on
                self._errors.setdefault(len(self._files), error)
                raise
        if self._errors:
            raise self._errors[min(self._errors)]
        return [each for each in self._found if each is not None]

    def _work(self) -> None:
        while not self._errors and (number := next(self._next)) < len(self._files):
            try:
                self._index(number)
            except BaseException as error:  # noqa: BLE001  raised by `run`
                self._errors[number] = error

    def _index(self, number: int) -> None:
        file = self._files[number]
        with told(file):
            found = self._format.index(file)
        with self._lock:
            self._found[number] = found
            self._done += 1
            self._rows += int(found.rows.sum())
            if self._progress:
                self._progress(self._done, len(self._files), self._rows)


def _joined(arrays: list[Numbers]) -> Numbers:
    return np.concatenate(arrays).astype(np.int64, copy=False)


def _table(files: Sequence[File]) -> FileTable:
    pa = arrow()
    roots = {url: number for number, url in enumerate(dict.fromkeys(file.folder.url for file in files))}
    return FileTable(
        tuple(roots),
        np.array([roots[file.folder.url] for file in files], np.int32),
        pa.array([file.name for file in files], pa.string()),
        np.array([file.size for file in files], np.int64),
        pa.array([file.version for file in files], pa.string()),
    )
