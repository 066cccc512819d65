"""Boxes of tensors: which chunks must be read for one, and where each of them goes."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.checkpoint.boxes import Box, is_stretch, offset, place, stretch
from strata.checkpoint.dtypes import dtype_of, raw
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import Tensor
from strata.checkpoint.reading import Placed, Wish


def wishes_for(tensor: Tensor, pieces: Sequence[Tensor] | None, wanted: Box, memory: Block) -> Iterator[Wish | Placed]:
    """What is wanted of a tensor, into memory that holds exactly that. `pieces` are what it lies in, if not in one."""
    item = dtype_of(tensor.dtype).bytes
    target = memory.view(raw(item)).reshape(wanted.shape)
    for piece, box in _boxed(tensor, pieces):
        if box.meet(wanted) is None:
            continue
        first = 0
        for chunk in piece.chunks:
            count = chunk.size // item
            there = [each.moved(box.at) for each in stretch(box.shape, first, first + count)]
            if any(each.meet(wanted) is not None for each in there):
                start = _one_stretch(there, wanted)
                if start is None:
                    yield Placed(chunk, tensor.name, partial(_put, target, wanted, box, first))
                else:
                    yield Wish(chunk, tensor.name, memory[start * item : start * item + chunk.size])
            first += count


def _boxed(tensor: Tensor, pieces: Sequence[Tensor] | None) -> Iterator[tuple[Tensor, Box]]:
    """What to read from, each with the box of the tensor that it is. A piece that does not say where it begins is the
    first; the tensor itself is all of it, wherever it lies in an array."""
    if pieces is None:
        yield tensor, Box.whole(tensor.shape)
        return
    for piece in pieces:
        yield piece, Box.whole(piece.shape) if piece.at is None else Box(piece.at, piece.shape)


def once(wishes: Iterable[Wish | Placed]) -> list[Wish | Placed]:
    """Each chunk read one time, of however many boxes it holds some."""
    wanted: dict[tuple[int, int], list[Wish | Placed]] = {}
    for wish in wishes:
        wanted.setdefault((wish.chunk.file, wish.chunk.at), []).append(wish)
    return [
        same[0] if len(same) == 1 else Placed(same[0].chunk, same[0].tensor, partial(_put_all, same))
        for same in wanted.values()
    ]


def _put_all(wishes: Sequence[Wish | Placed], memory: Block) -> None:
    for wish in wishes:
        if isinstance(wish, Placed):
            wish.put(memory)
        else:
            np.copyto(wish.target, memory)


def _one_stretch(boxes: Sequence[Box], wanted: Box) -> int | None:
    """Where these lie in what is wanted, if all of them do, one after the other without a gap."""
    start, end = None, 0
    for box in boxes:
        if box.meet(wanted) != box:
            return None
        own = Box(tuple([at - base for at, base in zip(box.at, wanted.at, strict=True)]), box.shape)
        first = offset(own, wanted.shape)
        if not is_stretch(own, wanted.shape) or first != (first if start is None else end):
            return None
        start, end = (first if start is None else start), first + box.size
    return start


def _put(target: NDArray[Any], wanted: Box, piece: Box, first: int, memory: Block) -> None:
    place(target, wanted, piece, first, memory.view(target.dtype))


def memory_for(dtype: str, box: Box) -> Block:
    return np.empty(dtype_of(dtype).bytes * box.size, np.uint8)
