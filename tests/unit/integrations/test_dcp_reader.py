"""`dcp.load` from a Strata checkpoint, whoever saved it."""

import gc
import logging
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

from strata.checkpoint import CheckpointManager
from strata.checkpoint.marks import PerRank, Replicated
from strata.checkpoint.readers import CheckpointGone
from strata.errors import CheckpointDamaged, Conflict, InvalidInput, NotFound
from strata.integrations.dcp import StrataReader, StrataWriter, reader
from strata.storage import BlockingStorage, MemoryStorage, StorageBackend
from strata.testing.faulty import FaultyStorage
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.states import assert_same
from tests.unit.integrations.ranks import columns, load_together, rows
from tests.until import until

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

Pair = namedtuple("Pair", "left right")


def saved(state: Any) -> MemoryStorage:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(state, 1)
    return storage


def load(into: dict[str, Any], storage: StorageBackend, **given: Any) -> dict[str, Any]:
    dcp.load(into, storage_reader=StrataReader(storage, **given), no_dist=True)
    return into


def cause(raised: pytest.ExceptionInfo[CheckpointException]) -> BaseException:
    found: BaseException = raised.value.failures[0][0]
    return found


# -- what there is ---------------------------------------------------------------------------------------------------


def test_names_and_kinds_are_those_that_torch_itself_would_save(tmp_path: Path) -> None:
    state = {
        "model": {"w": torch.ones(3, 2), "deep": {"b": torch.ones(1).bfloat16()}},
        "list": [torch.ones(2), 3, {"z": torch.zeros(1)}, [torch.ones(1), 1]],
        "plain": [1, [2, 3]],
        "dicts": [{"a": 1}, {}],
        "tuple": (torch.ones(2), 1),
        "numpy": np.arange(3),
        "numbers": {0: torch.ones(1), 1: {"x": 5}},
        "step": 5,
        "none": None,
        "empty": [],
        "parameter": torch.nn.Parameter(torch.ones(1)),
    }
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    theirs = dcp.FileSystemReader(tmp_path).read_metadata()
    mine = StrataReader(saved(state)).read_metadata()
    assert mine.planner_data == theirs.planner_data
    assert set(mine.state_dict_metadata) == set(theirs.state_dict_metadata)
    for name, told in theirs.state_dict_metadata.items():
        found = mine.state_dict_metadata[name]
        assert type(found) is type(told)
        if isinstance(told, TensorStorageMetadata):
            assert isinstance(found, TensorStorageMetadata)
            assert (found.size, found.properties.dtype, found.chunks) == (told.size, told.properties.dtype, told.chunks)


def test_names_that_are_one_when_joined_by_dots_are_told() -> None:
    with pytest.raises(InvalidInput, match=r"two entries that are both called 'a\.b'"):
        StrataReader(saved({"a": {"b": 1}, "a.b": 2})).read_metadata()


def test_what_is_no_dict_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is a state of bytes"):
        StrataReader(saved(b"bytes")).read_metadata()
    with pytest.raises(InvalidInput, match="is a state that is no dict"):
        StrataReader(saved([torch.ones(1)])).read_metadata()


def test_which_one_is_said_or_the_latest() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        for step in (1, 2, 3):
            manager.save({"w": torch.full((2,), step)}, step)
    assert load({"w": torch.zeros(2, dtype=torch.int64)}, storage)["w"].tolist() == [3, 3]
    assert load({"w": torch.zeros(2, dtype=torch.int64)}, storage, step=1)["w"].tolist() == [1, 1]
    with pytest.raises(NotFound, match="no committed checkpoint of step 9"):
        StrataReader(storage, step=9).read_metadata()
    with pytest.raises(CheckpointException, match="NotFound: there is no committed checkpoint in memory:"):
        load({"w": torch.zeros(1)}, MemoryStorage())


# -- tensors ---------------------------------------------------------------------------------------------------------


def test_tensors_are_filled_where_they_lie_and_values_are_put_in_place() -> None:
    state: dict[str, Any] = {
        "w": torch.randn(4, 3),
        "list": [torch.ones(2), 3],
        "tuple": (torch.ones(2), Pair(1, "x"), np.float32(2), {"s"}, b"raw"),
        "numpy": np.arange(3),
        "step": 5,
    }
    into: Any = {"w": torch.zeros(4, 3), "list": [torch.zeros(2), 0], "tuple": None, "numpy": None, "step": None}
    own = into["w"]
    load(into, saved(state))
    assert into["w"] is own
    assert_same({**into, "tuple": into["tuple"][0]}, {**state, "tuple": state["tuple"][0]})
    assert into["tuple"][1:] == ((1, "x"), 2, {"s"}, b"raw")
    assert type(into["tuple"][1]) is tuple


def test_a_target_with_gaps_or_of_another_type_is_filled_through_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 100)
    state = {f"w{n}": torch.randn(6, 5) for n in range(4)}
    into = {name: torch.zeros(5, 6).t() for name in state} | {"w3": torch.zeros(6, 5, dtype=torch.float64)}
    load(into, saved(state))
    for name, tensor in state.items():
        assert torch.equal(into[name].to(torch.float32), tensor)
    assert into["w0"].stride() == (1, 6)
    assert into["w3"].dtype is torch.float64


def test_views_are_loaded_as_what_they_show() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    state = {"whole": whole, "turned": whole.t(), "row": whole[1], "same": whole, "wide": torch.ones(1, 3).expand(5, 3)}
    into = {name: torch.zeros(tensor.shape) for name, tensor in state.items()}
    storage = saved(state)
    assert_same(load(into, storage), {name: tensor.contiguous() for name, tensor in state.items()})
    part = {"turned": columns(torch.zeros(6, 4), 1, 2), "row": rows(torch.zeros(6), 1, 3)}
    load_together([part], [StrataReader(storage)])
    assert_same(part["turned"].part, whole.t()[:, 2:].contiguous())
    assert_same(part["row"].part, whole[1, 2:4])


def test_what_ranks_saved_together_any_ranks_load() -> None:
    storage = MemoryStorage()
    big = torch.arange(1 << 20, dtype=torch.float32).reshape(1024, -1)
    with Crew(storage, 3) as crew:
        crew.save(
            [{"big": Replicated(big), "own": PerRank({"n": rank, "t": torch.ones(2) * rank})} for rank in range(3)], 1
        )
    into: Any = [
        {"big": columns(torch.zeros_like(big), rank, 2), "own": {"n": 0, "t": torch.zeros(2)}} for rank in range(2)
    ]
    load_together(into, [StrataReader(storage, rank=rank) for rank in range(2)])
    for rank, found in enumerate(into):
        assert torch.equal(found["big"].part, columns(big, rank, 2).part)
        assert (found["own"]["n"], found["own"]["t"].tolist()) == (rank, [rank, rank])
    with pytest.raises(CheckpointException, match="Missing key"):
        load({"own": {"n": 0}}, storage, rank=7)


class Counting(MemoryStorage):
    """Counts the bytes that are read of tensors."""

    count = 0

    async def read_into(self, path: str, start: int, targets: Any, **given: Any) -> None:
        if path.endswith(".safetensors"):
            self.count += sum(len(each) for each in targets)
        await super().read_into(path, start, targets, **given)


def test_only_chunks_that_hold_some_of_it_are_read() -> None:
    big = torch.zeros(4, 8 << 20, dtype=torch.uint8)
    storage = saved({"big": big, "other": torch.zeros(1 << 20)})
    counting = Counting(space=storage.space)
    load_together([{"big": rows(torch.ones_like(big), 1, 4)}], [StrataReader(counting)])
    assert counting.count == 8 << 20


def test_what_the_checkpoint_lacks_or_has_in_another_shape_is_told_by_torch() -> None:
    storage = saved({"w": torch.ones(3)})
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: v"):
        load({"v": torch.ones(3)}, storage)
    with pytest.raises(CheckpointException, match="Size mismatch"):
        load({"w": torch.ones(4)}, storage)
    planner = DefaultLoadPlanner(allow_partial_load=True)
    into = {"w": torch.zeros(3), "v": torch.zeros(1)}
    dcp.load(into, storage_reader=StrataReader(storage), planner=planner, no_dist=True)
    assert into["w"].tolist() == [1, 1, 1]


def test_kinds_of_the_metadata() -> None:
    told = StrataReader(saved({"w": torch.ones(3), "n": 1})).read_metadata().state_dict_metadata
    assert isinstance(told["n"], BytesStorageMetadata)
    assert isinstance(told["w"], TensorStorageMetadata)


# -- damage and company ----------------------------------------------------------------------------------------------


def test_damage_is_named_and_said_to_be_in_what_was_loaded_into() -> None:
    storage = saved({"w": torch.ones(100), "t": (torch.ones(5),)})
    blocking = BlockingStorage(storage)
    (key,) = (entry.path for entry in blocking.list_all() if entry.path.endswith(".safetensors"))
    sound = blocking.read(key)
    blocking.write(key, bytes(byte ^ 1 for byte in sound))
    for into in ({"w": torch.zeros(100)}, {"w": torch.zeros(200)[::2]}):
        with pytest.raises(CheckpointException) as raised:
            load(into, storage)
        assert isinstance(cause(raised), CheckpointDamaged)
        assert "tensor 'w'" in str(cause(raised))
        assert "is a mixture now" in str(cause(raised))
    with pytest.raises(CheckpointException, match="tensor 't/0'"):
        load({"t": None}, storage)
    blocking.write(key, sound[:-1])
    with pytest.raises(CheckpointException, match=r"bytes, and .* were written"):
        load({"w": torch.zeros(100)}, storage)
    blocking.write(key, sound)
    load({"w": torch.zeros(100)}, storage)


def marks(storage: StorageBackend) -> list[str]:
    return [entry.path for entry in BlockingStorage(storage).list_all("default/checkpoints/readers")]


def test_nobody_deletes_what_is_being_loaded() -> None:
    storage = MemoryStorage()
    state = {"w": torch.ones(3)}
    dcp.save(state, storage_writer=StrataWriter(storage, step=1), no_dist=True)
    looking = StrataReader(storage)
    planner, into = DefaultLoadPlanner(), {"w": torch.zeros(3)}
    metadata = looking.read_metadata()
    dcp.save(state, storage_writer=StrataWriter(storage, step=2, keep_count=1), no_dist=True)
    planner.set_up_planner(into, metadata, True)
    looking.set_up_storage_reader(metadata, True)
    (plan,) = looking.prepare_global_plan([looking.prepare_local_plan(planner.create_local_plan())])
    looking.read_data(planner.finish_plan(plan), planner).wait()
    assert into["w"].tolist() == [1, 1, 1]
    assert marks(storage) == []


def test_a_load_that_fails_leaves_no_mark() -> None:
    storage = saved({"w": torch.ones(3)})
    with pytest.raises(CheckpointException):
        load({"v": torch.ones(3)}, storage)

    def is_collected() -> bool:
        gc.collect()  # which does nothing while another thread is at it
        return not marks(storage)

    until(is_collected)
    looking = StrataReader(storage)
    looking.read_metadata()
    looking.read_metadata()
    assert len(marks(storage)) == 1
    looking.reset()
    assert marks(storage) == []
    with pytest.raises(InvalidInput, match="not open any more"):
        looking.prepare_local_plan(dcp.LoadPlan([]))


def test_ranks_that_find_another_latest_are_told() -> None:
    storage = saved({"w": torch.ones(3)})
    one, other = StrataReader(storage), StrataReader(storage)
    one.read_metadata()
    dcp.save({"w": torch.ones(3)}, storage_writer=StrataWriter(storage, step=2), no_dist=True)
    other.read_metadata()
    plans = [each.prepare_local_plan(dcp.LoadPlan([])) for each in (one, other)]
    with pytest.raises(Conflict, match=r"found step_1 \(.*\), step_2 \(.*\): load again, or say which step"):
        one.prepare_global_plan(plans)


class ReadOnly(FaultyStorage):
    def draw(self, operation: str, path: str) -> Any:
        return ("before" if operation in ("write", "delete") else "done"), 0.0


def test_where_no_mark_can_be_made_it_is_read_without(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.checkpoint.readers.told_places", set())  # it is told once for each place
    storage = saved({"w": torch.ones(3)})
    with caplog.at_level(logging.WARNING):
        assert load({"w": torch.zeros(3)}, ReadOnly(storage))["w"].tolist() == [1, 1, 1]
    assert "without a mark" in caplog.text


def test_what_is_deleted_while_it_is_read_without_a_mark_is_gone_and_not_damaged() -> None:
    storage = saved({"w": torch.ones(3)})
    looking, planner = StrataReader(ReadOnly(storage)), DefaultLoadPlanner()
    planner.set_up_planner({"w": torch.zeros(3)}, looking.read_metadata(), True)
    with CheckpointManager(storage) as manager:
        manager.save({"w": torch.ones(3)}, 2)
        manager.delete(1)
    with pytest.raises(CheckpointGone, match=r"step 1 in .* was just deleted"):
        looking.read_data(planner.create_local_plan(), planner)
