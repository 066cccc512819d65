"""A folder of raw files: each is one sample, with its name in column `path` and its bytes in column `data`."""

from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from strata.data.columnar import arrow, texts
from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import MAX_VALUE_BYTES, Block, FileIndex
from strata.data.formats.places import LARGE_BYTES, Parts, Places
from strata.data.formats.values import Values
from strata.data.schemas import Found, same

if TYPE_CHECKING:
    import pyarrow as pa


# Shared by the indexes of all files: there may be a million.
_ZERO, _ONE = np.zeros(1, np.int64), np.ones(1, np.int64)


@cache
def _schema() -> "pa.Schema":
    pa = arrow()
    return pa.schema([("path", pa.string()), ("data", pa.binary())])


class Files(msgspec.Struct, frozen=True, tag="files"):
    """Files as they are. `path` is relative to what all of the dataset has in common, with slashes."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        return ()

    def merge(self, found: Found) -> "pa.Schema":
        return same(found)

    def index(self, file: File) -> FileIndex:
        if file.size > MAX_VALUE_BYTES:
            raise Damage(f"it has {file.size} bytes; at most {MAX_VALUE_BYTES} are read as one sample")
        return FileIndex(
            _ZERO, np.array([file.size], np.int64), _ONE, _schema(), 0
        )  # to look into each would be to read all

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        pa = arrow()
        path = texts([file.name])
        if "data" not in schema.names:
            return pa.table({"path": path}).select(schema.names)
        data = file.read(0, file.size)
        values = Values(data, _ZERO, np.array([file.size], np.int64)).take(_ZERO)
        return pa.table({"path": path, "data": values}).select(schema.names)

    def parts(self, file: File, block: Block, schema: "pa.Schema") -> Parts | None:
        if file.size < LARGE_BYTES or "data" not in schema.names:
            return None
        path = arrow().table({"path": [file.name]})
        return Parts(path.select([name for name in schema.names if name == "path"]), {"data": _whole(file.size)})


def _whole(size: int) -> Places:
    return Places(_ZERO, np.array([size], np.int64))
