"""Files of tensors, streamed: windows of whole chunks, one being filled while the one before is written."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from strata import background
from strata.checkpoint.assembling import WINDOW_BYTES, Assembler, Outline, Stretch, bytes_plan, tree_plan
from strata.checkpoint.manifest import CHUNK_BYTES, Chunk, digest_of
from strata.errors import InvalidInput
from strata.storage import BlockingStorage, MemoryStorage

SIZES = (3 * CHUNK_BYTES + 5, 0, 7, WINDOW_BYTES, *(1000,) * 50, CHUNK_BYTES)
DATA = [np.random.default_rng(n).integers(0, 256, size, np.uint8) for n, size in enumerate(SIZES)]
OUTLINES = [Outline(f"w{n}", "uint8", (size,), size) for n, size in enumerate(SIZES)]


class Supplied:
    """The data, and how it was asked for."""

    def __init__(self) -> None:
        self.busy = 0
        self.most = 0
        self.asked: list[int] = []

    async def __call__(self, stretches: Sequence[Stretch]) -> None:
        self.busy += 1
        self.most = max(self.most, self.busy)
        self.asked.append(sum(len(stretch.target) for stretch in stretches))
        await asyncio.sleep(0)
        for stretch in stretches:
            stretch.target[:] = DATA[stretch.tensor][stretch.start : stretch.start + len(stretch.target)]
        self.busy -= 1


def test_every_byte_is_where_its_chunk_says() -> None:
    storage, supplied, moved = MemoryStorage(), Supplied(), [0]
    plan = tree_plan(OUTLINES)
    chunks = background.run(Assembler(storage, supplied, moved.append).write(OUTLINES, plan, ["file"]))
    file = BlockingStorage(storage).read("file")
    assert len(file) == plan[0].size
    assert file.startswith(plan[0].header)
    for data, own in zip(DATA, chunks, strict=True):
        assert b"".join(file[chunk.at : chunk.at + chunk.size] for chunk in own) == data.tobytes()
        assert all(digest_of(file[chunk.at : chunk.at + chunk.size]) == chunk.digest for chunk in own)
    assert sum(moved) == sum(SIZES)


def test_one_window_is_asked_for_at_a_time_and_none_is_large() -> None:
    supplied = Supplied()
    background.run(
        Assembler(MemoryStorage(), supplied, lambda count: None).write(OUTLINES, tree_plan(OUTLINES), ["file"])
    )
    assert supplied.most == 1
    assert max(supplied.asked) <= WINDOW_BYTES
    assert len(supplied.asked) > 3


def test_bytes_are_a_file_of_their_own() -> None:
    storage = MemoryStorage()
    outline = [Outline("", "uint8", (SIZES[0],), SIZES[0])]
    (chunks,) = background.run(
        Assembler(storage, Supplied(), lambda count: None).write(outline, bytes_plan(SIZES[0]), ["model.bin"])
    )
    assert BlockingStorage(storage).read("model.bin") == DATA[0].tobytes()
    assert chunks[-1] == Chunk(0, 3 * CHUNK_BYTES, 5, digest_of(DATA[0][-5:].tobytes()))


def test_what_fails_while_it_is_supplied_leaves_no_file() -> None:
    storage, supplied = MemoryStorage(), Supplied()

    async def fails_later(stretches: Sequence[Stretch]) -> None:
        if len(supplied.asked) == 2:
            raise InvalidInput("no more")
        await supplied(stretches)

    with pytest.raises(InvalidInput, match="no more"):
        background.run(
            Assembler(storage, fails_later, lambda count: None).write(OUTLINES, tree_plan(OUTLINES), ["file"])
        )
    assert not [*BlockingStorage(storage).list_all()]
