"""Small tensors that lie side by side in a file, to be read as one stretch: an object for each would cost more than its
bytes do."""

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.manifest import Tensor

SMALL_BYTES = 64 << 10
RUN_BYTES = 4 << 20


class Run(NamedTuple):
    """Tensors by their numbers, in the order of a file, each in one chunk; from where to where in it they lie."""

    numbers: list[int]
    start: int
    end: int


def runs_of(tensors: Sequence[Tensor], numbers: Iterable[int]) -> tuple[list[Run], list[int]]:
    """Runs of those that are small; and the others: large, or among others in memory, or not what their shape needs."""
    small: list[tuple[int, int, int, int]] = []
    others: list[int] = []
    sizes: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    for number in numbers:
        tensor = tensors[number]
        outline = tensor.dtype, tensor.shape
        known = sizes.get(outline)
        if known is None:
            item = dtype_of(tensor.dtype).bytes
            known = sizes[outline] = (item, item * prod(tensor.shape))
        item, size = known
        if 0 < size <= SMALL_BYTES and len(tensor.chunks) == 1 and not tensor.shift:
            chunk = tensor.chunks[0]
            if chunk.size == size and not chunk.at % item:
                small.append((chunk.file, chunk.at, size, number))
                continue
        others.append(number)
    small.sort()
    return list(_joined(small)), others


def _joined(small: Iterable[tuple[int, int, int, int]]) -> Iterator[Run]:
    numbers: list[int] = []
    file = start = end = -1
    for own, at, size, number in small:
        if own != file or at != end or at - start >= RUN_BYTES:
            if numbers:
                yield Run(numbers, start, end)
            numbers, file, start = [], own, at
        numbers.append(number)
        end = at + size
    if numbers:
        yield Run(numbers, start, end)
