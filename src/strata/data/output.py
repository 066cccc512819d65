"""What batches are given as: numpy arrays, Arrow tables or torch tensors, without a copy where the type allows it."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from strata.data.runs import Batch
from strata.errors import InvalidInput

Output: TypeAlias = Literal["numpy", "arrow", "torch"]


class Finish:
    """What is done with each batch when it is made. A class, so that it can be pickled if `map` can."""

    def __init__(self, output: Output, map: Callable[[Batch], Any] | None) -> None:
        """`map` is applied first, to arrays; what it gives is turned, if it is a dict of them, and else left alone."""
        if output not in _MADE:
            raise InvalidInput(f'output must be "numpy", "arrow" or "torch", not {output!r}')
        self._make, self._map = _MADE[output], map

    def __call__(self, batch: Batch) -> Any:
        mapped = batch if self._map is None else self._map(batch)
        return self._make(mapped) if isinstance(mapped, dict) else mapped


def _numpy(batch: Batch) -> Any:
    return batch


def _arrow(batch: Batch) -> Any:
    import pyarrow as pa

    return pa.table({name: _arrow_column(values) for name, values in batch.items()})


def _arrow_column(values: Any) -> Any:
    import pyarrow as pa

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
