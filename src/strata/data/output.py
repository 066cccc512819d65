"""What batches are given as: numpy arrays, Arrow tables or torch tensors, without a copy where the type allows it."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from strata.core.ids import check_callable, check_choice
from strata.data.columnar import plain_type
from strata.data.runs import Batch
from strata.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

Output: TypeAlias = Literal["numpy", "arrow", "torch"]


def check_output(output: Output) -> None:
    check_choice(output, "output", _MADE)
    if output == "torch" and find_spec("torch") is None:
        raise InvalidInput(
            "output='torch' makes tensors of torch, which is not installed: pip install 'strata-runtime[torch]'"
        )


class Finish:
    """What is done with each batch when it is made. A class, so that it can be pickled if `map` can."""

    def __init__(self, output: Output, map: Callable[[Batch], Any] | None, schema: "pa.Schema | None" = None) -> None:
        """`map` is applied first, to arrays; what it gives is turned, if it is a dict of them, and else left alone.
        `schema` is what they are before: without `map`, tables are of its types, whatever is in a batch."""
        check_output(output)
        if map is not None:
            check_callable(map, "map")
        self._make, self._map = _MADE[output], map
        self.keeps_arrow = output == "arrow" and map is None
        """Whether it wants columns as Arrow has them: what comes to be a table need not be arrays of numpy's before."""
        if self.keeps_arrow and schema is not None:
            self._make = partial(_arrow, types={field.name: field.type for field in schema})

    def __call__(self, batch: Batch) -> Any:
        mapped = batch if self._map is None else self._map(batch)
        return self._make(mapped) if isinstance(mapped, dict) else mapped


def _numpy(batch: Batch) -> Any:
    return batch


def _arrow(batch: Batch, types: "dict[str, pa.DataType] | None" = None) -> Any:
    import pyarrow as pa

    known = types or {}
    return pa.table({name: _arrow_column(values, known.get(name)) for name, values in batch.items()})


def _arrow_column(values: Any, type: "pa.DataType | None") -> Any:
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return values
    if type is not None and values.dtype.hasobject:  # of objects, of which there may be none to tell the type by
        return pa.array(values, plain_type(type))
    if not isinstance(values, np.ndarray) or values.ndim == 1:
        return pa.array(values)
    inner = values.reshape(-1)
    for size in reversed(values.shape[1:]):
        inner = pa.FixedSizeListArray.from_arrays(inner, size)
    return inner


def _torch(batch: Batch) -> Any:
    import torch

    return {name: torch.from_numpy(values) if _is_number(values) else _listed(values) for name, values in batch.items()}


def _is_number(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc"


def _listed(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values


_MADE: dict[str, Callable[[Batch], Any]] = {"numpy": _numpy, "arrow": _arrow, "torch": _torch}
