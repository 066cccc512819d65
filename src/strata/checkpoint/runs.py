"""Small tensors that lie side by side in a file, to be read as one stretch: an object for each would cost more than its
bytes do."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.manifest import Tensor

SMALL_BYTES = 64 << 10
RUN_BYTES = 4 << 20


class Run(NamedTuple):
    """Tensors of one type by their numbers, in the order of a file, each in one chunk; from where to where in it they
    lie."""

    dtype: str
    numbers: list[int]
    start: int
    end: int


def runs_of(tensors: Sequence[Tensor], numbers: Iterable[int]) -> tuple[list[Run], list[int]]:
    """Runs of those that are small; and the others: large, empty, or to lie in memory in their own way."""
    small: list[tuple[int, int, int, int, str]] = []
    others: list[int] = []
    items = {dtype: dtype_of(dtype).bytes for dtype in {tensor.dtype for tensor in tensors}}
    for number in numbers:
        tensor = tensors[number]
        chunks, dtype = tensor.chunks, tensor.dtype
        if len(chunks) == 1 and chunks[0].size <= SMALL_BYTES and not tensor.shift:
            chunk = chunks[0]
            at = chunk.at
            if not at % items[dtype]:
                small.append((chunk.file, at, chunk.size, number, dtype))
                continue
        others.append(number)
    small.sort()
    return list(_joined(small)), others


def _joined(small: Iterable[tuple[int, int, int, int, str]]) -> Iterator[Run]:
    numbers: list[int] = []
    file = start = end = -1
    kind = ""
    for own, at, size, number, dtype in small:
        if at != end or own != file or dtype != kind or at - start >= RUN_BYTES:
            if numbers:
                yield Run(kind, numbers, start, end)
            numbers, file, start, kind = [], own, at, dtype
        numbers.append(number)
        end = at + size
    if numbers:
        yield Run(kind, numbers, start, end)
