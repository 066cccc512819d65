"""Which files an index is made without, where the user asked for that: those that are damaged or gone, and those whose
columns do not fit what most files have."""

import os
from collections import Counter
from collections.abc import Sequence

from strata.data.files import File
from strata.data.formats import AnyFormat
from strata.data.formats.base import FileIndex
from strata.data.skipping import SkippedFile, check_there, logger
from strata.errors import DataMismatch, NotFound, StrataError


class LeftOut:
    """Files that are left out, in the order in which they were found to be."""

    def __init__(self) -> None:
        self._found: list[SkippedFile] = []
        self._first: StrataError | None = None

    @property
    def files(self) -> tuple[SkippedFile, ...]:
        return tuple(self._found)

    def add(self, path: str, error: StrataError) -> None:
        self._found.append(SkippedFile(path, error.code, str(error)))
        self._first = self._first or error
        logger.warning("%s is left out of the dataset: %s", path, error)

    def absent(self, path: str, error: NotFound) -> None:
        """A path of a list has nothing."""
        if "://" not in path:
            check_there(os.path.dirname(os.path.abspath(path)))
        self.add(path, error)

    def check_some(self, left: Sequence[object]) -> None:
        """A dataset without any file is not what was asked for: then the first error is."""
        if not left and self._first is not None:
            raise self._first


def fitting(format: AnyFormat, files: Sequence[File], found: Sequence[FileIndex]) -> dict[int, DataMismatch]:
    """The files, by number, whose columns do not fit the others'. Where files say different things, most are right."""
    schemas = {number: each.schema for number, each in enumerate(found) if each.schema is not None}
    texts = {number: str(schema) for number, schema in schemas.items()}
    counts = Counter(texts.values())
    ordered = sorted(schemas, key=lambda number: -counts[texts[number]])
    numbers = {file.path: number for number, file in enumerate(files)}
    misfits: dict[int, DataMismatch] = {}
    while True:
        try:
            format.merge((files[number].path, schemas[number]) for number in ordered if number not in misfits)
        except DataMismatch as error:
            misfits[numbers[error.file]] = error
        else:
            return misfits
