"""An index as one file: a mark, a version, a digest of the rest, then the numbers, compressed.

    8 bytes   STRATAIX
    4 bytes   the version of this layout, little-endian
    16 bytes  BLAKE2b of all that follows
    …         MessagePack, compressed with Zstandard after its size in 8 bytes

Loading it checks nothing but itself: the files need not be there. It never runs code.
"""

import os
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.core.ids import check_path
from strata.core.permutation import MAX_SIZE
from strata.data.columnar import arrow, texts
from strata.data.formats import AnyFormat
from strata.data.formats.base import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS, Numbers
from strata.data.index import BlockTable, DatasetIndex, FileTable
from strata.data.skipping import SkippedFile
from strata.errors import DataDamaged, InvalidInput, NotFound, ObjectCorrupt
from strata.storage.backend import StorageOptions
from strata.storage.blocking import BlockingStorage
from strata.storage.urls import open_storage, split_object_url

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2
MAX_INDEX_BYTES = 16 << 30

_MARK = b"STRATAIX"
_HEAD = struct.Struct("<8sI16sQ")


class _Stored(msgspec.Struct, frozen=True):
    """Arrays as their little-endian bytes."""

    format: AnyFormat
    schema: bytes
    roots: list[str]
    root: bytes
    names: list[str]
    sizes: bytes
    versions: list[str]
    seals: bytes
    blocks: bytes
    """How many each file has."""
    starts: bytes
    lengths: bytes
    rows: bytes
    skipped: tuple[SkippedFile, ...] = ()


def to_bytes(index: DatasetIndex) -> bytes:
    table = index.file_table
    stored = _Stored(
        index.format,
        index.schema.serialize().to_pybytes(),
        [*table.roots],
        _packed(table.root, "<i4"),
        table.names.to_pylist(),
        _packed(table.sizes, "<i8"),
        table.versions.to_pylist(),
        _packed(table.seals, "<u8"),
        _packed(np.diff(index.first_block), "<i8"),
        _packed(index.starts, "<i8"),
        _packed(index.lengths, "<i8"),
        _packed(np.diff(index.first_row), "<i8"),
        index.skipped,
    )
    plain = msgspec.msgpack.encode(stored)
    body: bytes = arrow().compress(plain, codec="zstd", asbytes=True)
    digest = _digest(len(plain), body)
    return _HEAD.pack(_MARK, VERSION, digest, len(plain)) + body


def from_bytes(data: bytes, *, path: str = "the index", options: StorageOptions | None = None) -> DatasetIndex:
    """The index again, or DataDamaged. `path` is what errors call it."""
    if len(data) < _HEAD.size or not data.startswith(_MARK):
        _damaged(path, "it does not begin as one does")
    _, version, digest, size = _HEAD.unpack_from(data)
    if version != VERSION:
        raise InvalidInput(
            f"{path} is an index of version {version}, and this Strata knows {VERSION}: make it again, or update Strata"
        )
    body = memoryview(data)[_HEAD.size :]
    if _digest(size, body) != digest or size > MAX_INDEX_BYTES:
        _damaged(path, "its digest differs")
    try:
        return _restored(_stored(body, size), options)
    except (arrow().ArrowException, msgspec.DecodeError, ValueError) as error:
        _damaged(path, str(error))


def save_index(index: DatasetIndex, path: str | os.PathLike[str]) -> None:
    """As one file, local or on any storage: whole or not at all, in place of any that is there."""
    if not isinstance(index, DatasetIndex):
        raise InvalidInput(f"index must be a DatasetIndex, not {type(index).__name__}")
    folder, key = split_object_url(check_path(path, "path"))
    with BlockingStorage(open_storage(folder)) as storage:
        storage.write(key, to_bytes(index))


def load_index(path: str | os.PathLike[str], *, options: StorageOptions | None = None) -> DatasetIndex:
    """What `save_index` saved; ObjectNotFound if nothing is there."""
    folder, key = split_object_url(check_path(path, "path"))
    with BlockingStorage(open_storage(folder, options=options)) as storage:
        return from_bytes(storage.read(key), path=os.fspath(path), options=options)


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file that begins as an index does."""
    folder, key = split_object_url(os.fspath(path))
    if not key:
        return False
    try:
        with BlockingStorage(open_storage(folder)) as storage:
            return bytes(storage.read_range(key, 0, len(_MARK))) == _MARK
    except (NotFound, ObjectCorrupt):  # nothing is there, or it is shorter
        return False


def _digest(size: int, body: "bytes | memoryview") -> bytes:
    digest = blake2b(size.to_bytes(8, "little"), digest_size=16)
    digest.update(body)
    return digest.digest()


def _packed(array: NDArray[Any], kind: str) -> bytes:
    return np.ascontiguousarray(array, kind).tobytes()


def _unpacked(data: bytes, count: int, most: int, what: str) -> Numbers:
    array = np.frombuffer(data, "<i8").astype(np.int64, copy=False)  # of a million blocks each copy is megabytes
    if len(array) != count or (count and (array.min() < 0 or array.max() > most)):
        raise ValueError(f"its {what} cannot be")
    return array


def _stored(body: memoryview, size: int) -> _Stored:
    return msgspec.msgpack.decode(arrow().decompress(body, size, codec="zstd", asbytes=True), type=_Stored)


def _restored(stored: _Stored, options: StorageOptions | None) -> DatasetIndex:
    files = len(stored.names)
    root = np.frombuffer(stored.root, "<i4").astype(np.int32)
    seals = np.frombuffer(stored.seals, "<u8").astype(np.uint64)
    if not files == len(root) == len(seals) == len(stored.versions) or (
        files and not 0 <= root.min() <= root.max() < len(stored.roots)
    ):
        raise ValueError("its files cannot be")
    blocks = _unpacked(stored.blocks, files, len(stored.rows), "blocks")
    count = len(stored.rows) // 8
    if int(blocks.sum()) != count:
        raise ValueError("its blocks are not as many as its files have")
    rows = _unpacked(stored.rows, count, MAX_BLOCK_ROWS, "rows")
    if float(rows.sum(dtype=np.float64)) > MAX_SIZE:
        raise ValueError("its rows are too many")
    return DatasetIndex(
        stored.format,
        _schema(stored.schema),
        FileTable(
            tuple(stored.roots),
            root,
            texts(stored.names),
            _unpacked(stored.sizes, files, MAX_SIZE, "sizes"),
            texts(stored.versions),
            seals,
        ),
        BlockTable(
            blocks,
            _unpacked(stored.starts, count, MAX_SIZE, "starts"),
            _unpacked(stored.lengths, count, MAX_BLOCK_BYTES, "lengths"),
            rows,
        ),
        options=options,
        skipped=stored.skipped,
    )


def _schema(data: bytes) -> "pa.Schema":
    return arrow("ipc").read_schema(arrow().py_buffer(data))


def _damaged(path: str, why: str) -> NoReturn:
    raise DataDamaged(f"{path} is not a whole index of a dataset: {why}. Make it again", file=path)
