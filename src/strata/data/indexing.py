"""Making an index: every file's blocks, in parallel threads. Nothing is kept but the numbers."""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

from strata.core.ids import check_callable, check_int
from strata.core.permutation import MAX_SIZE
from strata.data.columnar import texts
from strata.data.files import File
from strata.data.finding import PathLike, find_files
from strata.data.formats import AnyFormat, format_of
from strata.data.formats.base import FileIndex, Numbers
from strata.data.index import BlockTable, DatasetIndex, FileTable, told
from strata.data.leavingout import LeftOut, fitting
from strata.data.skipping import UNREADABLE, OnDamage, check_on_damage
from strata.errors import DataError, InvalidInput
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
    on_damage: OnDamage = "raise",
) -> DatasetIndex:
    """The index of the dataset at a path: a file, a folder, a pattern, or a list of those.

    on_damage: "skip" makes it without the files that are damaged, that changed meanwhile, whose columns do not fit what
        most have, or, in a list, that are not there. They are logged, and in `skipped` of the index.
    """
    check_on_damage(on_damage)
    if threads is not None:
        check_int(threads, "threads", least=1)
    if progress is not None:
        check_callable(progress, "progress")
    chosen, left_out = format_of(format), LeftOut() if on_damage == "skip" else None
    absent = None if left_out is None else left_out.absent
    files = find_files(path, suffixes=chosen.suffixes, options=options, absent=absent)
    if left_out is not None:
        left_out.check_some(files)
    return index_files(files, chosen, threads=threads, progress=progress, options=options, left_out=left_out)


def index_files(
    files: Sequence[File],
    format: str | AnyFormat,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    options: StorageOptions | None = None,
    left_out: LeftOut | None = None,
) -> DatasetIndex:
    """The index of these files, in this order; without those that cannot be read, if they may be `left_out`."""
    chosen = format_of(format)
    if not files:
        raise InvalidInput("a dataset needs at least one file")
    indexing = _Indexing(chosen, files, progress, left_out)
    files, found = indexing.run(threads or min(THREADS, 2 * (os.cpu_count() or 1) + 2))
    rows = _joined([each.rows for each in found])
    if int(rows.sum()) > MAX_SIZE:
        raise InvalidInput(f"the dataset has {int(rows.sum())} rows; at most {MAX_SIZE} can be")
    schemas = ((file.path, each.schema) for file, each in zip(files, found, strict=True) if each.schema is not None)
    return DatasetIndex(
        chosen,
        chosen.merge(schemas),
        _table(files, found),
        BlockTable(
            np.array([len(each.rows) for each in found], np.int64),
            _joined([each.starts for each in found]),
            _joined([each.lengths for each in found]),
            rows,
        ),
        options=options,
        skipped=() if left_out is None else left_out.files,
    )


class _Indexing:
    """Threads that take one file after the other. The first error, in the order of files, is raised, unless the file is
    to be left out for it."""

    def __init__(
        self, format: AnyFormat, files: Sequence[File], progress: Progress | None, left_out: LeftOut | None
    ) -> None:
        self._format, self._files, self._progress, self._left_out = format, files, progress, left_out
        self._next = itertools.count()
        self._found: list[FileIndex | None] = [None] * len(files)
        self._errors: dict[int, BaseException] = {}
        self._unreadable: dict[int, DataError] = {}
        self._lock = threading.Lock()
        self._done = self._rows = 0

    def run(self, threads: int) -> tuple[list[File], list[FileIndex]]:
        """The files that an index is made of, and what each has."""
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
        kept = [(file, found) for file, found in zip(self._files, self._found, strict=True) if found is not None]
        files, found = [file for file, _ in kept], [each for _, each in kept]
        return (files, found) if self._left_out is None else self._without(self._left_out, files, found)

    def _without(
        self, left_out: LeftOut, files: list[File], found: list[FileIndex]
    ) -> tuple[list[File], list[FileIndex]]:
        for number, error in sorted(self._unreadable.items()):
            left_out.add(self._files[number].path, error)
        misfits = fitting(self._format, files, found)
        for number, misfit in sorted(misfits.items()):
            left_out.add(files[number].path, misfit)
        left = [number for number in range(len(files)) if number not in misfits]
        left_out.check_some(left)
        return [files[number] for number in left], [found[number] for number in left]

    def _work(self) -> None:
        while not self._errors and (number := next(self._next)) < len(self._files):
            try:
                self._index(number)
            except BaseException as error:  # noqa: BLE001  raised by `run`
                if self._left_out is not None and isinstance(error, UNREADABLE):
                    self._unreadable[number] = error
                    self._count(0)
                else:
                    self._errors[number] = error

    def _index(self, number: int) -> None:
        file = self._files[number]
        with told(file):
            found = self._format.index(file)
        self._found[number] = found
        self._count(int(found.rows.sum()))

    def _count(self, rows: int) -> None:
        """A file is done."""
        with self._lock:
            self._done += 1
            self._rows += rows
            if self._progress:
                self._progress(self._done, len(self._files), self._rows)


def _joined(arrays: list[Numbers]) -> Numbers:
    return np.concatenate(arrays).astype(np.int64, copy=False)


def _table(files: Sequence[File], found: Sequence[FileIndex]) -> FileTable:
    roots = {url: number for number, url in enumerate(dict.fromkeys(file.folder.url for file in files))}
    return FileTable(
        tuple(roots),
        np.array([roots[file.folder.url] for file in files], np.int32),
        texts([file.name for file in files]),
        np.array([file.size for file in files], np.int64),
        texts([file.version for file in files]),
        np.array([each.seal for each in found], np.uint64),
    )
