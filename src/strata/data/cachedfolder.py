"""A folder of a remote storage whose bytes are kept on a disk of this machine.

An entry is what one request asked for: a block, or what is wanted of it, is asked for in the same way each time. It is
known by the file's version, too, and the storage gives bytes of no other: the file may have been written again after it
was indexed.
"""

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from strata.data.cache import Cache
from strata.data.columnar import arrow
from strata.data.files import File, Folder, RangeReader, Ranges, Seen

if TYPE_CHECKING:
    import pyarrow as pa


class CachedFolder:
    """`dataset` names the entries' own folder in the cache."""

    def __init__(self, folder: Folder, cache: Cache, dataset: str) -> None:
        self._folder, self._cache, self._dataset = folder, cache, dataset

    def __repr__(self) -> str:
        return f"CachedFolder({self._folder!r}, {self._cache!r})"

    @property
    def url(self) -> str:
        return self._folder.url

    def path_of(self, name: str) -> str:
        return self._folder.path_of(name)

    def look(self, name: str) -> Seen:
        return self._folder.look(name)

    def look_again(self, file: File) -> Seen:
        return self._folder.look_again(file)

    def may_have_changed(self, file: File) -> bool:
        return self._folder.may_have_changed(file)

    def read_ranges(self, file: File, ranges: Ranges) -> "list[pa.Buffer]":
        def fetch() -> bytes:
            return b"".join(self._folder.read_ranges(file, ranges))

        key = repr((file.path, file.version, file.size, [(start, length) for start, length in ranges])).encode()
        ends = [*accumulate(length for _, length in ranges)]
        if not ends or not ends[-1]:
            return self._folder.read_ranges(file, ranges)
        data = arrow().py_buffer(self._cache.get(self._dataset, key, ends[-1], fetch))
        return [data.slice(end - length, length) for end, (_, length) in zip(ends, ranges, strict=True)]

    def open(self, file: File, soon: Ranges) -> Any:
        return arrow().PythonFile(RangeReader(file, soon), mode="r")
