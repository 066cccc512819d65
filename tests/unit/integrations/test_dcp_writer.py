"""`dcp.save` to a Strata storage: a checkpoint like any other, of one rank and of several."""

import gc
import io
import json
import os
import pickle
import re
import socket
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_global_save_plan
from torch.distributed.checkpoint.planner import SavePlanner

from strata import CheckpointManagerConfig, background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.marks import PerRank
from strata.errors import InvalidInput, StorageUnavailable, Superseded, Unstorable
from strata.integrations.dcp import StrataReader, StrataWriter
from strata.storage import BlockingStorage, MemoryStorage, StorageBackend
from strata.testing.faulty import FaultyStorage
from tests.unit.checkpoint.dying import DyingStorage, deaths
from tests.unit.checkpoint.states import assert_same
from tests.unit.integrations.ranks import Halving, columns, load_together, rows, save_together

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

Pair = namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def no_plans_of_others() -> Iterator[None]:
    yield
    for name in ("save_plan", "final_save_plan", "all_plans", "global_plan", "metadata"):
        getattr(SavePlanner, f"_cached_{name}").clear()


def save(state: dict[str, Any], where: Any, step: int, **given: Any) -> None:
    dcp.save(state, storage_writer=StrataWriter(where, step=step, **given), no_dist=True)


def cause(raised: pytest.ExceptionInfo[CheckpointException]) -> BaseException:
    found: BaseException = raised.value.failures[0][0]
    return found


def training() -> dict[str, Any]:
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    return {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "step": 5}


def files(storage: StorageBackend, under: str = "default/checkpoints/step_") -> list[str]:
    return sorted(entry.path for entry in BlockingStorage(storage).list_all() if entry.path.startswith(under))


# -- one process -----------------------------------------------------------------------------------------------------


def test_what_dcp_saves_is_a_checkpoint_like_any_other(tmp_path: Path) -> None:
    state = training()
    save(state, tmp_path, 7, epoch=2, metrics={"loss": 0.5})
    with CheckpointReader(tmp_path) as reader:
        found, told = reader.load(), reader.describe()
        assert reader.verify() > 0
    optimizer = state["optimizer"]
    by_text = {str(key): each for key, each in optimizer["state"].items()}  # torch's own planner makes text of keys
    assert_same(found, {**state, "optimizer": {"state": by_text, "param_groups": optimizer["param_groups"]}})
    assert (told.step, told.epoch, told.metrics, told.world_size) == (7, 2, {"loss": 0.5}, 1)
    into = {"model": {name: torch.zeros_like(each) for name, each in state["model"].items()}}
    with CheckpointManager(tmp_path) as manager:
        manager.load(into=into, strict=False)
    assert_same(into["model"], state["model"])


def test_everything_that_a_state_may_hold_goes_along() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        "list": [torch.ones(2), 3, {"z": torch.zeros(1)}, [torch.ones(1), "x"]],
        "plain": [1, 2.5, [None, "text"]],
        "tuple": (1, torch.ones(3), {"deep": np.arange(2)}),
        "numpy": np.arange(3),
        "number": np.float32(2),
        "raw": b"bytes",
        "huge": 2**70,
        "none": None,
        "pair": Pair(1, "b"),
        "size": torch.Size([1, 2]),
        "tied": whole,
        "again": whole,
        "turned": whole.t(),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 4),
        "brain": torch.ones(3).bfloat16(),
        "a/b": {"c%d": 1, "": torch.ones(1)},
    }
    storage = MemoryStorage()
    save(state, storage, 1)
    found = CheckpointReader(storage).load()
    assert list(found) == list(state)
    assert_same(found, state)
    assert found["tied"].data_ptr() == found["again"].data_ptr()


def test_a_parameter_is_the_tensor_that_it_holds_and_ordered_dicts_are_dicts() -> None:
    storage = MemoryStorage()
    save({"p": torch.nn.Parameter(torch.ones(2)), "o": OrderedDict(a=torch.ones(1))}, storage, 1)
    assert_same(CheckpointReader(storage).load(), {"p": torch.ones(2), "o": {"a": torch.ones(1)}})


@pytest.mark.parametrize("state", [{}, {"n": 1}, {0: torch.ones(1), 1: []}])
def test_there_may_be_little_in_it(state: dict[Any, Any]) -> None:
    storage = MemoryStorage()
    save(state, storage, 1)
    assert_same(CheckpointReader(storage).load(), {str(key): each for key, each in state.items()})
    dcp.load({**state}, storage_reader=StrataReader(storage), no_dist=True)


def test_a_state_larger_than_the_memory_is_written_piece_by_piece(tmp_path: Path) -> None:
    state = {f"w{n}": torch.randn(1 << 20) for n in range(9)}
    save(state, tmp_path, 1, config=CheckpointManagerConfig(memory_bytes=16 << 20))
    assert_same(CheckpointReader(tmp_path).load(), state)


def test_what_cannot_be_stored_is_named_and_nothing_is_there() -> None:
    storage = MemoryStorage()
    for value, words in (
        (print, "hook: a builtins.builtin_function_or_method cannot be stored: a checkpoint holds no code"),
        (io.BytesIO(b"x"), "hook: a _io.BytesIO cannot be stored"),
        (PerRank(3), "hook: PerRank is for CheckpointManager"),
        ((1, [PerRank(3)]), "hook: PerRank is for CheckpointManager"),
        (torch.ones(2).to_sparse(), "hook: a tensor with the layout torch.sparse_coo cannot be stored"),
    ):
        with pytest.raises(CheckpointException) as raised:
            save({"w": torch.ones(2), "hook": value}, storage, 1)
        assert isinstance(cause(raised), Unstorable)
        assert words in str(cause(raised))
        assert files(storage) == []
    save({"w": torch.ones(2)}, storage, 1)
    assert CheckpointReader(storage).latest_step() == 1


def test_a_planner_that_does_not_flatten_must_have_nothing_to_flatten() -> None:
    storage, planner = MemoryStorage(), DefaultSavePlanner(flatten_state_dict=False)
    flat = {"model.w": torch.ones(2), "step": 3}
    dcp.save(flat, storage_writer=StrataWriter(storage, step=1), planner=planner, no_dist=True)
    assert_same(CheckpointReader(storage).load(), flat)
    for value in ({"w": 1}, [1, {"w": 2}], [torch.ones(1)]):
        with pytest.raises(CheckpointException) as raised:
            dcp.save({"a": value}, storage_writer=StrataWriter(storage, step=2), planner=planner, no_dist=True)
        assert "a: a " in str(cause(raised))
        assert "let the planner flatten the state" in str(cause(raised))


class Calls:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_a_planner_of_ones_own_is_asked_and_what_it_pickles_is_not_run(tmp_path: Path) -> None:
    storage = MemoryStorage()
    state = {"w": torch.ones(2), "n": (1, [2.5])}
    dcp.save(state, storage_writer=StrataWriter(storage, step=1), planner=Halving(), no_dist=True)
    assert_same(CheckpointReader(storage).load(), {"w": torch.ones(2).half(), "n": (1, [2.5])})
    bad = {"w": torch.ones(2), "bad": Calls(tmp_path / "owned")}
    with pytest.raises(CheckpointException) as raised:
        dcp.save(bad, storage_writer=StrataWriter(storage, step=2), planner=Halving(), no_dist=True)
    assert "'bad' holds more than tensors and plain values" in str(cause(raised))
    assert not (tmp_path / "owned").exists()


def test_it_can_be_saved_in_the_background() -> None:
    storage, state = MemoryStorage(), training()
    saving: Any = dcp.async_save(state, storage_writer=StrataWriter(storage, step=4), no_dist=True)
    saving.result()
    assert_same(CheckpointReader(storage).load()["model"], state["model"])


def test_the_example_in_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs/CHECKPOINTS.md").read_text("utf-8")
    section = page.partition("## With torch.distributed.checkpoint")[2]
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0], found)
    assert_same(CheckpointReader("checkpoints").load()["model"], dict(found["state_dict"]["model"]))


# -- steps, terms and retention --------------------------------------------------------------------------------------


def test_the_step_may_be_the_checkpoint_id() -> None:
    storage = MemoryStorage()
    writer = StrataWriter(storage)
    names: list[Any] = [1, "2", "step_3", "runs/step-4", Path("runs") / "step5"]
    for name in names:
        dcp.save({"w": torch.ones(1)}, checkpoint_id=name, storage_writer=writer, no_dist=True)
    assert CheckpointReader(storage).list_checkpoints() == [1, 2, 3, 4, 5]
    into = {"w": torch.zeros(1)}
    dcp.load(into, checkpoint_id="step-2", storage_reader=StrataReader(storage), no_dist=True)
    for wrong in ("latest", "runs/", "step_", -1, True):
        with pytest.raises(InvalidInput):
            writer.reset(wrong)
        assert not StrataWriter.validate_checkpoint_id(wrong)
    assert StrataReader.validate_checkpoint_id("step_7")
    with pytest.raises(CheckpointException) as raised:
        dcp.save({"w": torch.ones(1)}, storage_writer=StrataWriter(storage), no_dist=True)
    assert "nobody said which step is saved" in str(cause(raised))


def test_as_many_as_are_to_be_kept_stay(tmp_path: Path) -> None:
    for step in range(1, 6):
        save({"w": torch.full((3,), step)}, tmp_path, step, keep_count=2)
    assert CheckpointReader(tmp_path).list_checkpoints() == [4, 5]
    assert {each.name for each in (tmp_path / "default/checkpoints").glob("step_*")} == {"step_4", "step_5"}


def test_one_run_of_saves_is_one_term() -> None:
    storage = MemoryStorage()
    for step in (1, 2, 3):
        save({"w": torch.ones(1)}, storage, step)
    assert [CheckpointReader(storage).describe(step).term for step in (1, 2, 3)] == [1, 1, 1]


def test_a_step_that_is_there_is_saved_anew_and_leaves_later_ones_behind() -> None:
    storage = MemoryStorage()
    for step in (1, 2, 3):
        save({"w": torch.full((1,), step)}, storage, step)
    save({"w": torch.full((1,), 20)}, storage, 2)
    with CheckpointReader(storage) as reader:
        assert reader.list_checkpoints() == [1, 2]
        assert reader.load()["w"].item() == 20


@pytest.mark.parametrize(("resume", "left"), [(True, [1, 5]), (False, [1, 2, 3, 5])])
def test_a_run_goes_on_from_the_step_that_it_loaded(resume: bool, left: list[int]) -> None:
    storage = MemoryStorage()
    for step in (1, 2, 3):
        save({"w": torch.ones(1)}, storage, step)
    into = {"w": torch.zeros(1)}
    dcp.load(into, storage_reader=StrataReader(storage, step=1, resume=resume), no_dist=True)
    save({"w": torch.ones(1)}, storage, 5)
    assert CheckpointReader(storage).list_checkpoints() == left


def test_who_was_superseded_saves_no_more() -> None:
    one = MemoryStorage()
    other = MemoryStorage(space=one.space)
    save({"w": torch.ones(1)}, one, 1)
    save({"w": torch.ones(1)}, other, 2)
    for step in (3, 4):
        with pytest.raises(CheckpointException) as raised:
            save({"w": torch.ones(1)}, one, step)
        assert isinstance(cause(raised), Superseded)
    save({"w": torch.ones(1)}, other, 5)
    assert CheckpointReader(one).list_checkpoints() == [1, 2, 5]


def test_a_writer_goes_to_another_process_with_what_was_loaded_here(tmp_path: Path) -> None:
    for step in (1, 2):
        save({"w": torch.ones(1)}, tmp_path, step, metrics={"loss": 1})
    dcp.load({"w": torch.zeros(1)}, storage_reader=StrataReader(tmp_path, step=1), no_dist=True)
    for step in (4, 5):
        given = pickle.dumps(StrataWriter(str(tmp_path), step=step, metrics={"loss": step}, keep_count=5))
        dcp.save({"w": torch.ones(1)}, storage_writer=pickle.loads(given), no_dist=True)
    assert CheckpointReader(tmp_path).list_checkpoints() == [1, 4, 5]
    assert CheckpointReader(tmp_path).describe().metrics == {"loss": 5}


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(InvalidInput, match="always whole"):
        StrataWriter(MemoryStorage(), step=1, config=CheckpointManagerConfig(incremental=True))
    with pytest.raises(InvalidInput, match="step"):
        StrataWriter(MemoryStorage(), step=-1)
    with pytest.raises(InvalidInput, match="the coordinating one"):
        StrataWriter(MemoryStorage(), step=1).finish(dcp.Metadata({}), [])
    with pytest.raises(InvalidInput, match="has lost what the coordinating rank said"):
        StrataWriter(MemoryStorage(), step=1).write_data(dcp.SavePlan([]), DefaultSavePlanner())


# -- several ranks ---------------------------------------------------------------------------------------------------

ROWS, COLUMNS = torch.arange(15.0).reshape(5, 3), torch.arange(28).reshape(4, 7)


def state_of(rank: int, ranks: int, add: int = 0) -> dict[str, Any]:
    return {
        "model": {
            "rows": rows(ROWS + add, rank, ranks),
            "columns": columns(COLUMNS + add, rank, ranks),
            "few": rows(torch.ones(2), rank, ranks),
        },
        "list": [torch.full((3,), 1.0 + add), columns(COLUMNS + add, rank, ranks), "x", {"n": torch.ones(1)}],
        "tuple": (1, np.arange(4) + add, b"raw"),
        "step": add,
    }


def whole_state(add: int = 0) -> dict[str, Any]:
    return {
        "model": {"rows": ROWS + add, "columns": COLUMNS + add, "few": torch.ones(2)},
        "list": [torch.full((3,), 1.0 + add), COLUMNS + add, "x", {"n": torch.ones(1)}],
        "tuple": (1, np.arange(4) + add, b"raw"),
        "step": add,
    }


def save_on(ranks: int, storage: StorageBackend, step: int, **given: Any) -> None:
    writers = [StrataWriter(storage, step=step, keep_count=2) for _ in range(ranks)]
    save_together([state_of(rank, ranks, step) for rank in range(ranks)], writers, **given)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("coordinator", [0, -1])
def test_ranks_save_their_parts_and_the_whole_has_the_shape_of_the_state(ranks: int, coordinator: int) -> None:
    storage = MemoryStorage()
    save_on(ranks, storage, 3, coordinator=coordinator % ranks)
    with CheckpointReader(storage) as reader:
        found = reader.load()
        assert reader.verify() > 0
        told = reader.describe()
    assert_same(found, whole_state(3))
    assert (told.world_size, [part.rank for part in told.parts]) == (ranks, list(range(ranks)))
    assert all(part.written_bytes for part in told.parts)


@pytest.mark.parametrize(("saving", "loading"), [(4, 2), (2, 3), (3, 1), (1, 4)])
def test_any_number_of_ranks_loads_what_any_other_saved(saving: int, loading: int) -> None:
    storage = MemoryStorage()
    save_on(saving, storage, 3)
    into = [state_of(rank, loading, 100) for rank in range(loading)]
    load_together(into, [StrataReader(storage) for _ in range(loading)])
    for rank, found in enumerate(into):
        expected = state_of(rank, loading, 3)
        for name in ("rows", "columns", "few"):
            assert_same(found["model"][name].part, expected["model"][name].part)
        assert_same(found["list"][1].part, expected["list"][1].part)
        assert_same([found["list"][0], *found["list"][2:]], [expected["list"][0], *expected["list"][2:]])
        assert_same([found["tuple"], found["step"]], [expected["tuple"], 3])


def test_pieces_that_are_not_all_of_a_tensor_are_not_committed() -> None:
    storage = MemoryStorage()
    states = [{"w": rows(ROWS, rank, 3)} for rank in range(2)]
    with pytest.raises(InvalidInput, match=r"nothing is committed.*the pieces of 'w' are not all of it"):
        save_together(states, [StrataWriter(storage, step=1) for _ in states], [Unchecked(), Unchecked()])
    assert CheckpointReader(storage).latest_step() is None
    with pytest.raises(CheckpointException) as raised:  # torch itself would have written the half of it
        save({"w": rows(ROWS, 0, 2)}, storage, 1)
    assert "other ranks hold parts of it" in str(cause(raised))


class Unchecked(DefaultSavePlanner):
    """Does not look whether the pieces are all of it, as torch's does."""

    def create_global_plan(self, all_plans: Any) -> Any:
        return create_default_global_save_plan(all_plans)


@pytest.mark.parametrize(("coordinator", "parts"), [(0, [0, 1]), (3, [0, 1, 3])])
def test_ranks_that_have_nothing_to_write_have_no_part(coordinator: int, parts: list[int]) -> None:
    storage = MemoryStorage()
    states = [{"w": torch.ones(2), "n": 1} for _ in range(4)]
    save_together(states, [StrataWriter(storage, step=1) for _ in states], coordinator=coordinator)
    with CheckpointReader(storage) as reader:
        assert [part.rank for part in reader.describe().parts] == parts
        assert reader.describe().world_size == 4
        assert_same(reader.load(), {"w": torch.ones(2), "n": 1})


def test_keys_that_only_some_ranks_have_are_all_there() -> None:
    storage = MemoryStorage()
    states = [{"stages": {f"layer{rank}": torch.full((2,), rank), "all": rows(ROWS, rank, 3)}} for rank in range(3)]
    save_together(states, [StrataWriter(storage, step=1) for _ in states])
    found = CheckpointReader(storage).load()["stages"]
    assert_same(
        {name: found[name] for name in sorted(found)},
        {"all": ROWS, "layer0": torch.full((2,), 0), "layer1": torch.full((2,), 1), "layer2": torch.full((2,), 2)},
    )


def test_ranks_that_do_not_save_the_same_are_told() -> None:
    storage = MemoryStorage()
    states = [{"w": rows(ROWS.to(dtype), rank, 2)} for rank, dtype in enumerate((torch.float32, torch.float64))]
    with pytest.raises(InvalidInput, match="'w' is of another type or shape on some ranks"):
        save_together(states, [StrataWriter(storage, step=1) for _ in states])
    with pytest.raises(InvalidInput, match="has the name of a dict with others in it"):
        save_together(
            [{"a": torch.ones(1)}, {"a": {"b": torch.ones(2)}}], [StrataWriter(storage, step=1) for _ in range(2)]
        )
    with pytest.raises(InvalidInput, match="the coordinating rank saves step 1, and this one step 2"):
        save_together(
            [{"a": rows(ROWS, rank, 2)} for rank in range(2)], [StrataWriter(storage, step=step) for step in (1, 2)]
        )
    assert CheckpointReader(storage).latest_step() is None


def test_a_root_that_is_not_shared_is_told_by_the_name_of_the_machine() -> None:
    whole, roots = torch.arange(40.0).reshape(10, 4), [MemoryStorage(), MemoryStorage()]
    with pytest.raises(InvalidInput, match=f"a rank on {socket.gethostname()} does not see what the coordinating rank"):
        save_together([{"w": rows(whole, rank, 2)} for rank in range(2)], [StrataWriter(each, 1) for each in roots])
    assert not background.run(_paths(roots[1]))


async def _paths(storage: MemoryStorage) -> list[str]:
    return [entry.path async for entry in storage.list_all("")]


def test_plans_that_a_planner_keeps_are_those_of_the_next_save_too() -> None:
    storage = MemoryStorage()
    planners = [DefaultSavePlanner(enable_plan_caching=True) for _ in range(3)]
    for rank, planner in enumerate(planners):  # in one process they would share theirs
        planner._cached_plans_key = f"rank {rank}"
    for step in (1, 2, 3):
        save_on(3, storage, step, planners=planners)
        assert_same(CheckpointReader(storage).load(), whole_state(step))
    with CheckpointReader(storage) as reader:
        assert reader.list_checkpoints() == [2, 3]
        assert_same(reader.load(2), whole_state(2))
        reader.verify(2)


# -- failures --------------------------------------------------------------------------------------------------------


class Failing(MemoryStorage):
    """Takes no file of rank 1."""

    def open_writer(self, path: str, **given: Any) -> Any:
        if "/part-1-" in path:
            raise StorageUnavailable("rank 1 has no storage", storage=self.url, key=path)
        return super().open_writer(path, **given)

    async def write(self, path: str, data: Any, **given: Any) -> None:
        if "/part-1-" in path:
            raise StorageUnavailable("rank 1 has no storage", storage=self.url, key=path)
        await super().write(path, data, **given)


def test_a_rank_that_fails_leaves_the_checkpoint_before_and_the_next_save_clears_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    save_on(3, storage, 1)
    failing = Failing(space=storage.space)
    writers = [StrataWriter(failing if rank == 1 else storage, step=2) for rank in range(3)]
    with pytest.raises(StorageUnavailable, match="rank 1 has no storage"):
        save_together([state_of(rank, 3, 2) for rank in range(3)], writers)
    assert CheckpointReader(storage).list_checkpoints() == [1]
    assert_same(CheckpointReader(storage).load(), whole_state(1))
    left = files(storage, "default/checkpoints/step_2")
    assert {name.split("-")[1] for name in left} == {"0", "2"}
    writers = [writers[0], *(StrataWriter(storage) for _ in range(2))]
    for writer in writers:
        writer.reset(3)
    save_together([state_of(rank, 3, 3) for rank in range(3)], writers)
    assert "did not come to its end on all ranks" in caplog.text
    assert files(storage, "default/checkpoints/step_2") == []
    assert CheckpointReader(storage).list_checkpoints() == [1, 3]


def test_a_storage_that_does_not_answer_ends_the_save_by_name() -> None:
    class Stuck(FaultyStorage):
        def draw(self, operation: str, path: str) -> Any:
            return ("stuck" if path.endswith(ending) and operation != "exists" else "done"), 0.0

    storage = MemoryStorage()
    config = CheckpointManagerConfig(stuck_seconds=0.2)
    for step, (ending, doing) in enumerate(
        [("lineage.json", "beginning"), (".safetensors", "the save of step"), ("metadata.json", "committing")], 1
    ):
        stuck = Stuck(storage)
        with pytest.raises(CheckpointException) as raised:
            save({"w": torch.ones(3)}, stuck, step, config=config)
        stuck.release()
        assert isinstance(cause(raised), StorageUnavailable)
        assert doing in str(cause(raised))
        assert ending in str(cause(raised))
    save({"w": torch.ones(3)}, storage, 9)
    assert CheckpointReader(storage).latest_step() == 9


def test_what_a_dropped_writer_has_begun_is_cleared_up_by_another() -> None:
    storage = MemoryStorage()
    failing = Failing(space=storage.space)
    with pytest.raises(StorageUnavailable):
        save_together(
            [state_of(rank, 2, 2) for rank in range(2)],
            [StrataWriter(storage, step=2), StrataWriter(failing, step=2)],
        )
    gc.collect()
    save_on(2, storage, 3)
    assert files(storage, "default/checkpoints/step_2") == []
    assert CheckpointReader(storage).list_checkpoints() == [3]


def test_a_save_under_way_is_not_taken_for_rubbish_by_another() -> None:
    storage = MemoryStorage()
    slow = StrataWriter(storage, step=5)
    state, planner = {"w": torch.ones(3)}, DefaultSavePlanner()
    planner.set_up_planner(state, None, True)
    slow.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([slow.prepare_local_plan(planner.create_local_plan())])
    (plan,) = slow.prepare_global_plan(plans)
    results = slow.write_data(planner.finish_plan(plan), planner).value()
    there = files(storage, "default/checkpoints/step_5")
    save({"w": torch.ones(1)}, storage, 6, keep_count=1)
    assert files(storage, "default/checkpoints/step_5") == there
    slow.finish(metadata, [results])
    assert_same(CheckpointReader(storage).load(5), state)  # its own writer keeps all


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_at_any_call_leaves_the_checkpoint_before_or_the_new_one(after: bool) -> None:
    def before() -> MemoryStorage:
        storage = MemoryStorage()
        save_on(2, MemoryStorage(space=storage.space), 1)
        return storage

    def act(dying: DyingStorage) -> None:
        save_on(2, dying, 2)

    for left in deaths(act, before, after=after):
        with CheckpointReader(left) as reader:
            latest = reader.latest_step()
            assert latest in (1, 2)
            assert_same(reader.load(), whole_state(latest))
            reader.verify()
        again = MemoryStorage(space=left.space)
        save_on(2, again, 3)
        assert_same(CheckpointReader(again).load(), whole_state(3))
        needed = {name for name in files(again) if name.endswith("metadata.json")}
        folders = {name.rpartition("/")[0] for name in needed}
        assert {name.rpartition("/")[0] for name in files(again)} == folders


def test_its_part_manifests_say_what_each_rank_holds() -> None:
    storage = MemoryStorage()
    save_on(2, storage, 1)
    names = [name for name in files(storage) if "/part-" in name and name.endswith(".json")]
    parts = [json.loads(BlockingStorage(storage).read(name)) for name in names]
    assert [part["rank"] for part in parts] == [0, 1]
    assert parts[0]["skeleton"]["dict"]["list"][2] == "x"
    assert "rows" in str(parts[1]["skeleton"])


def test_nothing_is_finished_twice() -> None:
    storage = MemoryStorage()
    writer = StrataWriter(storage, step=1)
    dcp.save({"w": torch.ones(1)}, storage_writer=writer, no_dist=True)
    with pytest.raises(InvalidInput, match="was not begun here"):
        writer.finish(dcp.Metadata({}), [])
