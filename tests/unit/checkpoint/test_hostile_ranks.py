"""Checkpoints of many ranks from an attacker: parts that are each in order, and do not fit together."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Shard

from strata.checkpoint import CheckpointReader
from strata.checkpoint.boxes import Box, cover
from strata.checkpoint.marks import PerRank
from strata.errors import CheckpointDamaged, InvalidInput, NotFound
from strata.storage import BlockingStorage, MemoryStorage
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.forging import TRIED, Forgery, lies, put
from tests.unit.checkpoint.spread import spread
from tests.unit.checkpoint.states import assert_same

WHOLE = torch.arange(24.0).reshape(4, 6)


def saved() -> MemoryStorage:
    """Of four ranks, each with a box of one array, and something of its own."""
    storage = MemoryStorage()
    boxes = spread(WHOLE, (2, 2), [Shard(0), Shard(1)])
    states = [
        {"w": boxes[rank], "again": boxes[rank], f"only {rank}": np.full(3, rank), "own": PerRank({"at": rank})}
        for rank in range(4)
    ]
    with Crew(storage, 4) as crew:
        crew.save(states, 2)
    return storage


def read_everything(storage: MemoryStorage) -> Exception | None:
    """Every way of reading it, as two of the ranks; the first refusal, if any."""
    refused: Exception | None = None
    into = {"w": torch.zeros(4, 6)}
    with CheckpointReader(storage) as reader:
        for read in (
            lambda: reader.load(2),
            lambda: reader.load(2, into=into, strict=False),
            lambda: reader.load_slice("w", (slice(1, 3), 0), 2),
            lambda: reader.verify(2),
            lambda: reader.describe(2),
        ):
            try:
                read()
            except (CheckpointDamaged, InvalidInput, NotFound) as error:
                refused = refused or error
    return refused


@pytest.fixture
def storage() -> MemoryStorage:
    return saved()


def refusal(storage: MemoryStorage) -> str:
    said = ""
    with CheckpointReader(storage) as reader:
        for read in (reader.load, reader.verify, lambda: reader.load_slice("w", slice(1, 3))):
            with pytest.raises(CheckpointDamaged) as raised:
                read()
            said = str(raised.value)
    return said


def test_the_true_one_loads(storage: MemoryStorage) -> None:
    assert read_everything(storage) is None
    with CheckpointReader(storage) as reader:
        found = reader.load(2)
    assert_same(found["w"], WHOLE)
    assert_same([found[f"only {rank}"][0] for rank in range(4)], [np.int64(rank) for rank in range(4)])


@pytest.mark.slow
@pytest.mark.parametrize("how_many", ["some", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize("manifest", ["part", "metadata"])
@pytest.mark.usefixtures("little_room")
def test_whatever_one_of_many_says_it_is_a_state_or_a_clear_error(manifest: str, how_many: str) -> None:
    storage = saved()
    forged = Forgery(storage, 2, 1)
    told, say = getattr(forged, manifest), getattr(forged, f"say_in_{manifest}")
    refused = 0
    for way, lie in lies(told, how_many):
        say(put(told, way, lie))
        refused += read_everything(storage) is not None
    assert refused > TRIED // 4


@pytest.mark.parametrize("size", [0, 1, 3, -4])
def test_no_more_parts_than_ranks(storage: MemoryStorage, size: int) -> None:
    forged = Forgery(storage, 2)
    forged.say_in_metadata(forged.metadata | {"world_size": size})
    assert f"its 4 parts are not one of each of {size:,} ranks" in refusal(storage)


@pytest.mark.parametrize("rank", [0, 2, 4, -1])
def test_each_rank_has_one_part(storage: MemoryStorage, rank: int) -> None:
    forged = Forgery(storage, 2)
    told = forged.metadata
    told["parts"][1]["rank"] = rank
    forged.say_in_metadata(told)
    assert "its 4 parts are not one of each of 4 ranks" in refusal(storage)


def test_no_part_stands_for_another_ranks(storage: MemoryStorage) -> None:
    forged = Forgery(storage, 2, 1)
    forged.say_in_part(forged.part | {"rank": 2})
    assert "is the part of rank 2, where that of 1 should be" in refusal(storage)
    told = forged.metadata
    first, second = told["parts"][:2]
    told["parts"][1] = first | {"rank": second["rank"]}
    forged.say_in_metadata(told)
    assert "is the part of rank 0, where that of 1 should be" in refusal(storage)


def test_no_file_is_read_for_two_ranks(storage: MemoryStorage) -> None:
    """A hundred parts would make a hundred times as much of it."""
    other, forged = Forgery(storage, 2, 0).part, Forgery(storage, 2, 1)
    part = forged.part
    part["files"] = other["files"]
    part["tensors"] = [each for each in other["tensors"] if each["name"] == "only 0"]
    part["tensors"][0]["name"] = "only 1"
    part |= {"skeleton": {"dict": {"only 1": {"numpy": 0}}}, "leaves": [0]}
    forged.say_in_part(part)
    assert "ranks 0 and 1 both have the file 'step_2/part-0-" in refusal(storage)


def spread_leaves(part: Any) -> list[Any]:
    return [leaf for leaf in part["leaves"] if isinstance(leaf, dict) and leaf.get("tensors")]


def test_no_piece_is_of_two_arrays(storage: MemoryStorage) -> None:
    forged = Forgery(storage, 2, 1)
    part = forged.part
    first, second = spread_leaves(part)
    assert first["tensors"] == second["tensors"]  # which are one
    second["tensors"] = second["tensors"] * 2
    forged.say_in_part(part)
    assert "is a piece of 'again', and of something else" in refusal(storage)


@pytest.mark.parametrize("at", [[0, 0], [1, 3], [2, 0], [0, 2]])
def test_pieces_are_all_of_an_array_each_element_once(storage: MemoryStorage, at: list[int]) -> None:
    forged = Forgery(storage, 2, 1)
    part = forged.part
    piece = part["tensors"][spread_leaves(part)[0]["tensors"][0]]
    assert piece["at"] == [0, 3]
    piece["at"] = at
    forged.say_in_part(part)
    with (
        CheckpointReader(storage) as reader,
        pytest.raises(CheckpointDamaged, match="not all of it, each element once"),
    ):
        reader.load(2)


def test_the_same_pieces_are_not_two_shapes(storage: MemoryStorage) -> None:
    for rank in range(4):
        forged = Forgery(storage, 2, rank)
        part = forged.part
        spread_leaves(part)[1]["shape"] = [4, 7]
        forged.say_in_part(part)
    with (
        CheckpointReader(storage) as reader,
        pytest.raises(CheckpointDamaged, match="not all of it, each element once"),
    ):
        reader.load(2)


def test_pieces_that_make_a_grid_of_far_more_cells_take_no_memory() -> None:
    """Some thousand boxes in a diagonal, and as many elements as there are: each cuts the array in all dimensions."""
    length = 4000
    boxes = [Box((place, place), (1, 1)) for place in range(length)] + [Box((0, 0), (length - 1, length))]
    assert sum(box.size for box in boxes) == length * length
    tracemalloc.start()
    try:
        assert not cover((length, length), boxes)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_folder_of_which_a_part_is_gone_is_not_whole(storage: MemoryStorage) -> None:
    told = Forgery(storage, 2).metadata
    BlockingStorage(storage).delete(f"default/checkpoints/{told['parts'][3]['path']}")
    assert "is missing: the checkpoint is not whole" in refusal(storage)
