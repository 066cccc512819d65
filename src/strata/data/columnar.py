"""pyarrow, imported when it is first needed: `import strata.data` must work, and stay quick, without it."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TEXT_BYTES = 2**31 - 1


@cache
def arrow(module: str = "") -> Any:
    """pyarrow, or one of its modules: `arrow("parquet")`."""
    try:
        return import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise InvalidInput(
            "datasets are read with pyarrow, which is not there: pip install 'strata-runtime[data]'"
        ) from (error)


def plain_type(kind: Any) -> Any:
    """What values of a type are in batches: dictionaries and runs as what they stand for, and views, of which Arrow
    cannot take rows, as what they are views of."""
    types = arrow().types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return kind.value_type
    return arrow().string() if types.is_string_view(kind) else arrow().binary() if types.is_binary_view(kind) else kind


@cache
def can_be_taken(kind: Any) -> bool:
    """Whether Arrow can take rows of such a column, in any order."""
    try:
        arrow().nulls(0, plain_type(kind)).take(arrow().nulls(0, arrow().int64()))
    except (NotImplementedError, arrow().ArrowException):
        return False
    return True


def texts(values: Sequence[str]) -> "pa.Array":
    """As an array of Arrow's. Its own way of making one imports pandas, if that is there: 200 ms and 50 MB before
    the first batch."""
    pa = arrow()
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if ends[-1] > MAX_TEXT_BYTES:
        return pa.array(values, pa.string())
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)
