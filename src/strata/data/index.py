"""All blocks of a dataset, in order: which block holds a sample, and the block as an Arrow table.

A few numbers for each block, in arrays: millions of blocks are tens of megabytes, and any number of samples is located
at once. An index holds what each file looked like, so that whatever changed since is an error when it is read, and
never other samples under the same numbers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.core.ids import check_int
from strata.core.permutation import check_inside
from strata.data.cache import Cache
from strata.data.cachedfolder import CachedFolder
from strata.data.columnar import arrow
from strata.data.damage import Damage, Misfit
from strata.data.files import File, Folder, LocalFolder, folder_at
from strata.data.fingerprints import fingerprint_of, whole
from strata.data.formats import AnyFormat, format_name
from strata.data.formats.base import Block, Numbers
from strata.data.formats.places import Leaving, Parts
from strata.data.skipping import SkippedFile
from strata.errors import DataChanged, DataDamaged, DataError, DataMismatch, InvalidInput
from strata.storage.backend import StorageOptions

if TYPE_CHECKING:
    import pyarrow as pa


class Change(NamedTuple):
    """A file that is not as it was indexed."""

    path: str
    kind: Literal["changed", "missing", "added"]


class FileTable(NamedTuple):
    """What each file looked like, as columns: compact for a million of them."""

    roots: tuple[str, ...]
    root: NDArray[np.int32]
    """Which of the roots, of each file."""
    names: "pa.StringArray"
    sizes: Numbers
    versions: "pa.StringArray"
    seals: NDArray[np.uint64]
    """Of what each holds: see `FileIndex`."""


class BlockTable(NamedTuple):
    """How many blocks each file has; then, of each block, where it is for its format, its bytes and its rows."""

    per_file: Numbers
    starts: Numbers
    lengths: Numbers
    rows: Numbers


class DatasetIndex:
    """The blocks of a dataset.

    format     how its files are read
    schema     its columns, as an Arrow schema
    rows       how many samples it has; they are numbered in the order of the files
    blocks     how many blocks it has
    first_row  the first sample of each block, and at the end `rows`
    first_block  the first block of each file, and at the end `blocks`
    file_of    the file of each block
    skipped    the files that it was made without, where that was asked for
    starts, lengths  where a block is, for its format; `lengths` is in bytes, about what a block takes in memory
    """

    def __init__(
        self,
        format: AnyFormat,
        schema: "pa.Schema",
        files: FileTable,
        blocks: BlockTable,
        *,
        options: StorageOptions | None = None,
        skipped: tuple[SkippedFile, ...] = (),
    ) -> None:
        self.format = format
        self.skipped = skipped
        self.schema = schema
        self.file_table = files
        self.first_block = _sums(blocks.per_file)
        self.starts = blocks.starts
        self.lengths = blocks.lengths
        self.first_row = _sums(blocks.rows)
        self.file_of: NDArray[np.int32] = np.repeat(np.arange(len(files.sizes), dtype=np.int32), blocks.per_file)
        self._folders: list[Folder] = [folder_at(root, options) for root in files.roots]

    def __repr__(self) -> str:
        return (
            f"<DatasetIndex {format_name(self.format)}: {self.rows} rows in {self.blocks} blocks of {self.files} files>"
        )

    @property
    def rows(self) -> int:
        return int(self.first_row[-1])

    @property
    def blocks(self) -> int:
        return len(self.starts)

    @property
    def files(self) -> int:
        return len(self.file_table.sizes)

    def file(self, number: int) -> File:
        """A file as it was indexed."""
        table = self.file_table
        return File(
            self._folders[table.root[number]],
            table.names[number].as_py(),
            int(table.sizes[number]),
            table.versions[number].as_py(),
        )

    def file_rows(self) -> Numbers:
        """How many samples each file has."""
        rows: Numbers = np.diff(self.first_row[self.first_block])
        return rows

    def samples_of_files(self, first: int, end: int) -> tuple[int, int]:
        """Of the files from the first to before `end`: their first sample, and the one behind their last."""
        return int(self.first_row[self.first_block[first]]), int(self.first_row[self.first_block[end]])

    def block(self, number: int) -> Block:
        first, end = self.first_row[number : number + 2]
        return Block(int(self.starts[number]), int(self.lengths[number]), int(end - first))

    def locate(self, samples: Numbers) -> tuple[Numbers, Numbers]:
        """The block of each of these samples, and its row in it. For many at once."""
        _check_samples(samples)
        check_inside(samples, "samples", self.rows)
        blocks = np.searchsorted(self.first_row, samples, side="right") - 1
        return blocks, samples - self.first_row[blocks]

    def read(self, number: int, columns: Sequence[str] | None = None) -> "pa.Table":
        """A block as a table: these columns (None: all), in the schema's order. From any thread, off the GIL.

        DataChanged if the file is not as it was indexed; DataDamaged if the block cannot be read.
        """
        _check_number(number, self.blocks)
        schema, block = self._columns(columns), self.block(number)
        file, samples = self.file_and_samples(number)
        with told(file, *samples):
            table = self.format.read(file, block, schema)
            if schema.names:
                _check_rows(table.num_rows, block.rows)
            return table

    def parts(self, number: int, columns: Sequence[str] | None = None) -> Parts:
        """As `read`, but that large values of local files are left where they lie, if the format allows it."""
        schema, block = self._columns(columns), self.block(number)
        file, samples = self.file_and_samples(number)
        if file.is_local and self._leaving is not None:
            with told(file, *samples):
                found = self._leaving.parts(file, block, schema)
                if found is not None and schema.names:
                    _check_rows(found.rows, block.rows)
            if found is not None:
                return found
        return Parts(self.read(number, columns), {})

    def no_rows(self, columns: Sequence[str] | None = None) -> "pa.Table":
        """These columns (None: all) as `read` gives them, without a row."""
        schema = self._columns(columns)
        return arrow().table([arrow().nulls(0, field.type) for field in schema], schema=schema)

    def place_of(self, number: int) -> str:
        """Where a block is, as people say it."""
        file, samples = self.file_and_samples(number)
        return f"{file.path} ({_numbers(samples)})"

    def file_and_samples(self, number: int) -> tuple[File, tuple[int, int]]:
        """The file of a block; its first sample, and the one behind its last."""
        first, end = self.first_row[number : number + 2].tolist()
        return self.file(int(self.file_of[number])), (first, end)

    def check_columns(self, columns: Sequence[str] | None) -> None:
        """InvalidInput unless the dataset has them."""
        self._columns(columns)

    def check(self, files: Sequence[File]) -> list[Change]:
        """What is not as it was indexed, if the dataset consists of these files now: what `find_files` gives."""
        _check_files(files)
        now = {file.path: file for file in files}
        changes = []
        for number in range(self.files):
            then = self.file(number)
            file = now.pop(then.path, None)
            if file is None:
                changes.append(Change(then.path, "missing"))
            elif (file.size, file.version) != (then.size, then.version):
                changes.append(Change(then.path, "changed"))
        return changes + [Change(path, "added") for path in now]

    @cached_property
    def fingerprint(self) -> str:
        """The same for files of the same names, contents, rows and columns, wherever they are and whenever they were
        written."""
        return fingerprint_of(self.schema, self.file_table, self.file_rows())

    def cached(self, cache: Cache) -> "DatasetIndex":
        """The same, which keeps what it reads from remote storages. Files of this machine are not kept twice."""
        found = copy(self)
        found._folders = [
            folder if isinstance(folder, LocalFolder) else CachedFolder(folder, cache, whole(self.fingerprint))
            for folder in self._folders
        ]
        return found

    @cached_property
    def _leaving(self) -> Leaving | None:
        """The format, if it can leave large values where they are: to ask it each time takes a while."""
        return self.format if isinstance(self.format, Leaving) else None

    def _columns(self, columns: Sequence[str] | None) -> "pa.Schema":
        if columns is None:
            return self.schema
        if not isinstance(columns, Sequence):
            raise InvalidInput(f"columns must be a list of names, not {type(columns).__name__}")
        unknown = [name for name in columns if name not in self.schema.names]
        if unknown or isinstance(columns, str):
            raise InvalidInput(f"the dataset has no columns {unknown or columns!r}: it has {self.schema.names}")
        wanted = {*columns}
        return arrow().schema([field for field in self.schema if field.name in wanted], self.schema.metadata)


def _check_samples(value: object) -> None:
    if not isinstance(value, np.ndarray):
        raise InvalidInput(f"samples must be a numpy array, not {type(value).__name__}")
    if value.dtype.kind not in "iu":
        raise InvalidInput(f"samples must be an array of integers, not of {value.dtype}")


def _check_number(value: object, blocks: int) -> None:
    """Also of numpy: what `locate` gives."""
    number = check_int(int(value) if isinstance(value, np.integer) else value, "number")
    if number >= blocks:
        raise InvalidInput(f"there is no block of number {number}: there are {blocks}, counted from 0")


def _check_files(value: object) -> None:
    if not isinstance(value, Sequence) or not all(isinstance(file, File) for file in value):
        raise InvalidInput(f"files must be a list, as find_files gives it, not {type(value).__name__}")


def _check_rows(found: int, then: int) -> None:
    if found != then:
        raise Damage(f"{found} rows are there, and {then} were when it was indexed")


def _sums(counts: Numbers) -> Numbers:
    """What comes before each, and at the end before none."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


@contextmanager
def told(file: File, first: int | None = None, end: int | None = None) -> Iterator[None]:
    """What goes wrong in reading a file, as an error that names it, and the samples from the first to before `end`."""
    samples = None if first is None or end is None else (first, end)
    try:
        with _damage_told(file, samples):
            yield
    except DataChanged as error:
        if samples is None or error.samples is not None:
            raise
        what = f"{error}. It was read for {_numbers(samples)}"
        raise DataChanged(what, file=error.file, samples=samples) from error


@contextmanager
def _damage_told(file: File, samples: tuple[int, int] | None) -> Iterator[None]:
    pa = arrow()
    try:
        yield
    except (Damage, pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        file.check()  # damage to a file that changed is no wonder: that it changed is what to say
        where = file.path + (f" ({_numbers(samples)})" if samples else "")
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, MemoryError):
            raise DataError(
                f"{where} needs more memory than there is: {why}", file=file.path, samples=samples
            ) from error
        what = f"{where} is damaged, or not of the format it is read as: {why}"
        raise DataDamaged(what, file=file.path, samples=samples) from error
    except Misfit as error:
        file.check()
        row = (samples[0] if samples else 0) + error.row
        raise DataMismatch(f"sample {row} in {file.path} {error}", file=file.path, samples=(row, row + 1)) from error


def _numbers(samples: tuple[int, int]) -> str:
    return f"samples {samples[0]} to {samples[1] - 1}"
