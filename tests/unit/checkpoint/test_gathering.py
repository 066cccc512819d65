"""Boxes of tensors: read from any pieces in any chunks, and from no chunk that holds nothing of them."""

from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.boxes import Box
from strata.checkpoint.gathering import memory_for, once, wishes_for
from strata.checkpoint.manifest import Chunk, Tensor
from strata.checkpoint.reading import Wish

SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple)


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    pieces = [Box((), ())]
    for length in shape:
        edges = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=2))})
        pieces = [Box((*box.at, at), (*box.shape, end - at)) for box in pieces for at, end in pairwise(edges)]
    return draw(st.permutations(pieces))


@given(st.data(), st.sampled_from(["float32", "bfloat16", "complex128", "uint8"]))
def test_any_box_comes_from_any_pieces(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(SHAPES)
    item = {"float32": 4, "bfloat16": 2, "complex128": 16, "uint8": 1}[dtype]
    whole = np.arange(prod(shape) * item, dtype=np.uint32).astype(np.uint8).reshape(*shape, item)
    numbers = np.arange(prod(shape)).reshape(shape)
    at = tuple(data.draw(st.integers(0, length)) for length in shape)
    wanted = Box(at, tuple(data.draw(st.integers(0, n - start)) for start, n in zip(at, shape, strict=True)))
    boxes = data.draw(st.one_of(st.none(), grids(shape)))
    everything = Box.whole(shape)
    file, pieces, held = bytearray(), [], {}
    for box in [everything] if boxes is None else boxes:
        own = whole[box.within(everything)].tobytes()
        elements = numbers[box.within(everything)].reshape(-1)
        most = data.draw(st.integers(1, 9)) * item
        chunks = []
        for start in range(0, len(own), most):
            some = own[start : start + most]
            chunks.append(Chunk(0, len(file), len(some), ""))
            held[len(file)] = set(elements[start // item : (start + len(some)) // item].tolist())
            file += some
        pieces.append(Tensor("w", dtype, box.shape, chunks, at=box.at))
    tensor = pieces[0] if boxes is None else Tensor("w", dtype, shape, [])
    memory = memory_for(dtype, wanted)
    needed = set(numbers[wanted.within(everything)].reshape(-1).tolist())
    read = []
    for wish in wishes_for(tensor, None if boxes is None else pieces, wanted, memory):
        chunk = wish.first
        read.append(chunk.at)
        found = np.frombuffer(bytes(file[chunk.at : chunk.at + chunk.size]), np.uint8)
        if isinstance(wish, Wish):
            wish.target[:] = found
        else:
            wish.put(found)
    assert memory.tobytes() == whole[wanted.within(everything)].tobytes()
    assert sorted(read) == sorted(at for at, elements in held.items() if elements & needed)


def test_a_chunk_is_read_once_for_all_boxes_that_want_some_of_it() -> None:
    """Rows of the first, a column that goes through all, and the whole of the last."""
    whole = np.arange(48, dtype=np.uint8).reshape(6, 8)
    tensor = Tensor("w", "uint8", whole.shape, [Chunk(0, at, 16, "") for at in (0, 16, 32)])
    wanted = [Box((0, 0), (1, 8)), Box((1, 0), (1, 8)), Box((0, 5), (6, 1)), Box((4, 0), (2, 8))]
    memories = [memory_for("uint8", box) for box in wanted]
    wishes = [
        wish for box, memory in zip(wanted, memories, strict=True) for wish in wishes_for(tensor, None, box, memory)
    ]
    assert len(wishes) == 6
    found = once(wishes)
    assert [wish.chunk.at for wish in found] == [0, 16, 32]
    for wish in found:
        chunk = whole.reshape(-1)[wish.chunk.at : wish.chunk.at + 16]
        if isinstance(wish, Wish):
            wish.target[:] = chunk
        else:
            wish.put(chunk)
    for box, memory in zip(wanted, memories, strict=True):
        assert memory.tobytes() == whole[box.within(Box.whole(whole.shape))].tobytes()
