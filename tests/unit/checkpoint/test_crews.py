"""Many ranks, one checkpoint: what each has to write, and what each gets back."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.checkpoint.manifest import CHUNK_BYTES
from strata.checkpoint.marks import PerRank, Replicated
from strata.checkpoint.telling import SaveEvent
from strata.checkpoint.words import Words
from strata.errors import (
    InvalidInput,
    RankFailed,
    SaveFailed,
    SaveReplaced,
    StorageUnavailable,
    Unstorable,
)
from strata.storage import MemoryStorage
from strata.testing.faulty import Faults, FaultyStorage
from strata.testing.manager_seam import ManagerSeam, Point
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.spread import rank_of
from tests.unit.checkpoint.states import assert_same
from tests.until import until


def state_of(rank: int) -> dict[str, Any]:
    """As data parallel training has it."""
    return {
        "model": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(4)},
        "big": Replicated(np.arange(1 << 20, dtype=np.float32).reshape(1024, -1)),
        "small": Replicated({"a": torch.full((3,), 2.0), "c": torch.tensor(7)}),
        "rng": PerRank({"state": torch.full((5,), rank), "count": rank}),
        "step": 5,
    }


def bare(rank: int) -> dict[str, Any]:
    """What comes back."""
    state = state_of(rank)
    return {**state, "big": state["big"].value, "small": state["small"].value, "rng": state["rng"].value}


def loaded(rank: int, manager: CheckpointManager, step: int) -> Any:
    return manager.load(step)


def save_late(rank: int, manager: CheckpointManager, state: Any, step: int) -> None:
    """The later, the higher the rank."""
    time.sleep(0.3 * rank)
    manager.save(state, step)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_gets_back_what_is_common_and_what_is_its_own(tmp_path: Path, size: int) -> None:
    with Crew(tmp_path, size) as crew:
        crew.save([state_of(rank) for rank in range(size)], 1, epoch=3, metrics={"loss": 0.5})
        for rank, found in enumerate(crew.each(lambda rank, manager: manager.load())):
            assert_same(found, bare(rank))
    reader = CheckpointReader(tmp_path)
    assert_same(reader.load(), bare(0))
    told = reader.describe()
    assert (told.world_size, told.epoch, told.metrics, len(told.parts)) == (size, 3, {"loss": 0.5}, size)
    assert reader.verify() > sum(part.stored_bytes for part in told.parts)


def test_what_all_have_is_written_once_and_by_all(tmp_path: Path) -> None:
    with Crew(tmp_path, 4) as crew:
        crew.save([state_of(rank) for rank in range(4)], 1)
        written = [part.written_bytes for part in CheckpointReader(tmp_path).describe().parts]
    own = 5 * 8
    assert sum(written) == (12 + 4) * 4 + (4 << 20) + 3 * 4 + 8 + 4 * own
    assert max(written) - min(written) < 1000


def test_ranks_of_a_pipeline_have_different_arrays(tmp_path: Path) -> None:
    states = [{"layers": {str(rank): torch.full((3,), float(rank))}, "step": 4} for rank in range(3)]
    with Crew(tmp_path, 3) as crew:
        crew.save(states, 1)
        for found in crew.each(lambda rank, manager: manager.load()):
            assert_same(found, {"layers": {str(rank): torch.full((3,), float(rank)) for rank in range(3)}, "step": 4})
        rooms = [{"layers": {str(rank): torch.zeros(3)}} for rank in range(3)]
        crew.each(lambda rank, manager: manager.load(into=rooms[rank], strict=False))
    assert [float(rooms[rank]["layers"][str(rank)][0]) for rank in range(3)] == [0.0, 1.0, 2.0]


def test_bytes_are_each_ranks_own(tmp_path: Path) -> None:
    with Crew(tmp_path, 2) as crew:
        crew.save([b"zero", b"one"], 1)
        assert crew.each(lambda rank, manager: manager.load()) == [b"zero", b"one"]


def test_more_ranks_than_saved_have_nothing_of_their_own(tmp_path: Path) -> None:
    with Crew(tmp_path, 2) as crew:
        crew.save([state_of(rank) for rank in range(2)], 1)
    with CheckpointManager(tmp_path, rank=3, world_size=4, run_id="other") as manager:
        found = manager.load()
    expected = bare(3)
    del expected["rng"]
    assert_same(found, expected)


@pytest.mark.parametrize("size", [1, 2])
def test_what_ranks_had_that_are_none_any_more_is_told_and_can_be_read(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Crew(tmp_path, 4) as crew:
        crew.save([state_of(rank) for rank in range(4)], 1)
        crew.each(lambda rank, manager: manager.load())
    assert "had of their own" not in caplog.text
    with Crew(tmp_path, size, "other") as crew:
        crew.managers[0].load(keys="model/*")
        assert "had of their own" not in caplog.text
        for rank, found in enumerate(crew.each(lambda rank, manager: manager.load())):
            assert_same(found, bare(rank))
    gone = ", ".join(map(str, range(size, 4)))
    assert [record.getMessage() for record in caplog.records if "had of their own" in record.getMessage()] == [
        f"step 1 was saved by 4 ranks, and {size} go on from it: what others had of their own (rng of ranks {gone}) is "
        f"not loaded. CheckpointReader(..., rank={size}) reads it"
    ]
    for rank in range(4):
        with CheckpointReader(tmp_path, rank=rank) as reader:
            assert_same(reader.load(), bare(rank))
            assert reader.load_slice("rng/state").tolist() == [rank] * 5
            assert reader.load(keys="rng/count") == {"rng": {"count": rank}}
    with pytest.raises(InvalidInput, match="rank"):
        CheckpointReader(tmp_path, rank=-1)


def test_bytes_of_ranks_that_are_none_any_more_are_told_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Crew(tmp_path, 2) as crew:
        crew.save([b"zero", b"one"], 1)
    with CheckpointManager(tmp_path) as manager:
        assert manager.load() == b"zero"
    assert "(the bytes of rank 1) is not loaded. CheckpointReader(..., rank=1) reads it" in caplog.text
    assert CheckpointReader(tmp_path, rank=1).load() == b"one"


def test_a_reader_of_two_tiers_gives_what_a_rank_has_of_its_own(tmp_path: Path) -> None:
    with Crew(tmp_path / "far", 2) as crew:
        crew.save([state_of(rank) for rank in range(2)], 1)
    with CheckpointReader(tmp_path / "far", local=tmp_path / "near", rank=1) as reader:
        assert_same(reader.load(), bare(1))


def test_saves_follow_each_other_and_the_latest_is_kept(tmp_path: Path) -> None:
    with Crew(tmp_path, 2, keep_count=2) as crew:
        for step in range(1, 6):
            crew.save([{"w": np.full(3, step), "own": PerRank(np.full(2, rank + step))} for rank in range(2)], step)
        crew.each(lambda rank, manager: manager.wait())
        assert crew.managers[1].list_checkpoints() == [4, 5]
        found = crew.each(lambda rank, manager: manager.load(4))
    assert [int(each["own"][0]) for each in found] == [4, 5]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(("1", "2", "3"))]


def test_a_rank_that_fails_fails_the_save_on_all_by_name() -> None:
    storage = MemoryStorage()
    config = CheckpointManagerConfig(ranks_seconds=5)
    with Crew(storage, 2, config=config) as crew:
        crew.save([{"w": np.ones(3)}] * 2, 1)

        def act(rank: int, manager: CheckpointManager) -> Any:
            if rank == 1:
                ManagerSeam(manager).fail(Point.WRITE, OSError("the disk is on fire"))
            with pytest.raises(RankFailed if rank == 0 else OSError) as caught:
                manager.save({"w": np.ones(3)}, 2)
            return str(caught.value)

        told = crew.each(act)
        assert "rank 1 on" in told[0]
        assert "the disk is on fire" in told[0]
        assert crew.managers[0].list_checkpoints() == [1]


def test_who_is_missing_is_named() -> None:
    config = CheckpointManagerConfig(ranks_seconds=0.3)
    alone = CheckpointManager(MemoryStorage(), rank=0, world_size=3, run_id="r", config=config)
    with pytest.raises(RankFailed, match=r"the parts of ranks 1, 2 are not there after 0.3 s"):
        alone.save({"w": np.ones(3)}, 1)
    other = CheckpointManager(MemoryStorage(), rank=1, world_size=3, run_id="r", config=config)
    with pytest.raises(RankFailed, match=r"rank 0 has not begun to save .* rank 1 on \S+ looks for it in memory"):
        other.save({"w": np.ones(3)}, 1)


def test_different_steps_are_told() -> None:
    crew = Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=1))

    def act(rank: int, manager: CheckpointManager) -> str:
        manager.save({"w": np.ones(3)}, 1)
        with pytest.raises(RankFailed) as caught:
            manager.save({"w": np.ones(3)}, 10 + rank)
        manager.save({"w": np.ones(3)}, 20)
        return str(caught.value)

    told = crew.each(act)
    assert "the parts of rank 1 are not there after 1 s: did rank 1 call save(step=10)?" in told[0]
    assert "The last step with the parts of all ranks is 1." in told[0]
    assert "rank 0 has not begun to save step 11 after 1 s: did rank 0 call save(step=11)" in told[1]
    assert crew.managers[1].list_checkpoints() == [1, 20]


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_whose_state_cannot_be_stored_keeps_nobody_waiting(who: int) -> None:
    crew = Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=60))

    def act(rank: int, manager: CheckpointManager) -> str:
        with pytest.raises(Unstorable if rank == who else RankFailed) as caught:
            manager.save({"w": object() if rank == who else np.ones(3)}, 1)
        manager.save({"w": np.ones(3)}, 1)
        return str(caught.value)

    told = crew.each(act)
    assert "w: a builtins.object cannot be stored" in told[1 - who]
    assert crew.managers[0].load()["w"].tolist() == [1, 1, 1]


def test_a_rank_that_fails_before_rank_0_has_said_a_word_keeps_nobody_waiting() -> None:
    crew = Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=60))
    with pytest.raises(InvalidInput):
        crew.managers[1].save({"w": np.ones(3)}, 1, metrics={"loss": "none"})  # type: ignore[dict-item]
    with ThreadPoolExecutor() as threads:
        ahead = threads.submit(crew.managers[1].save, {"w": np.ones(3)}, 2)
        with pytest.raises(RankFailed, match=r"rank 1 on .* could not save its part: the metric 'loss' must be"):
            crew.managers[0].save({"w": np.ones(3)}, 1)
        crew.managers[0].save({"w": np.ones(3)}, 2)
        ahead.result()
    assert crew.managers[1].list_checkpoints() == [2]


class Unreadable:
    """A state that tells of a file whose name is no text."""

    def strata_state(self) -> Any:
        raise OSError("cannot read \udcff.bin")

    def load_strata_state(self, tree: Any) -> None: ...


@pytest.mark.parametrize("who", [0, 1])
def test_words_that_are_no_text_are_told_too(who: int) -> None:
    crew = Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=60))

    def act(rank: int, manager: CheckpointManager) -> str:
        with pytest.raises(OSError if rank == who else RankFailed) as caught:
            manager.save(Unreadable() if rank == who else {"w": np.ones(3)}, 1)
        return str(caught.value)

    told = crew.each(act)
    assert told[who] == "cannot read \udcff.bin"
    assert r"cannot read \udcff.bin" in told[1 - who]


def test_what_others_wrote_goes_when_rank_0_fails(tmp_path: Path) -> None:
    with Crew(tmp_path, 2) as crew:
        states = [{"w": np.ones(3), "own": PerRank(np.ones(4))}] * 2
        crew.save(states, 1)

        ManagerSeam(crew.managers[0]).fail(Point.READ_PARTS, OSError("no more room"))
        for step in (2, 3):
            with pytest.raises(OSError, match="no more room"):
                crew.save(states, step)
        assert not [path for path in tmp_path.rglob("part-1-*") if "step_1" not in str(path)]


def test_arrays_that_rank_0_has_no_longer_are_written_by_others() -> None:
    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew:
        crew.save([{"a": np.ones(1), "b": np.ones(2)}] * 2, 1)
        states = [{"a": np.ones(1)}, {"a": np.ones(1), "b": np.full(2, 7.0)}]
        with pytest.raises(RankFailed, match="'b' are not all of it"):
            crew.save(states, 2)
        crew.save(states, 3)
        assert crew.managers[0].load()["b"].tolist() == [7, 7]


def adam(step: int, rank: int = 0) -> dict[str, Any]:
    """Of data parallel training: nothing is kept before the first step."""
    moments = {f"m{n}": np.full(1000, step + n + rank) for n in range(4)} if step else {}
    return {"model": {"w": np.full(500, step)}, "optimizer": {"state": moments, "lr": 0.1}}


def test_what_appears_after_the_first_save_is_written_once_too(tmp_path: Path) -> None:
    with Crew(tmp_path, 3) as crew:
        for step in range(3):
            crew.save([adam(step)] * 3, step)
            written = [part.written_bytes for part in crew.managers[0].describe().parts]
            assert written == [8 * 500 + bool(step) * 4 * 8 * 1000, 0, 0]
        for found in crew.each(lambda rank, manager: manager.load()):
            assert_same(found, adam(2))


def test_what_appears_after_the_first_save_is_compared_once_too(caplog: pytest.LogCaptureFixture) -> None:
    def same(apart: int) -> dict[str, Any]:
        return {"x": Replicated(np.full(10, apart))}

    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew:
        for step in (0, 1, 2):
            crew.save([adam(step, rank) if step else adam(0) for rank in range(2)], step)
        for step in (3, 4):  # until a save was well
            with pytest.raises(RankFailed, match="other values than rank 0 for x, which is marked Replicated"):
                crew.save([adam(step, rank) | same(rank) for rank in range(2)], step)
        crew.save([adam(5, rank) | same(7) for rank in range(2)], 5)
    told = [record.getMessage() for record in caplog.records if "mark them PerRank" in record.getMessage()]
    names = ", ".join(f"optimizer/state/m{n}" for n in range(4))
    assert [each.partition(": rank 0's")[0] for each in told] == [
        f"step 1: rank 1 has other values than rank 0 for {names}"
    ]


def test_names_are_heard_again_only_where_something_is_new() -> None:
    storage = FaultyStorage(MemoryStorage())
    with Crew(storage, 2) as crew:

        def asked(step: int, states: list[Any]) -> int:
            before = len(storage.calls)
            crew.save(states, step)
            return sum(call.path.endswith("/names.json") for call in storage.calls[before:])

        assert asked(1, [adam(0)] * 2) == 2  # told, and heard
        assert asked(2, [adam(0)] * 2) == 0
        assert asked(3, [adam(1)] * 2) == 2
        assert [asked(step, [adam(step)] * 2) for step in (4, 5)] == [0, 0]
        assert asked(6, [adam(0)] * 2) == 1  # rank 0 has fewer: others need not hear of it
        assert asked(7, [adam(7)] * 2) == 1


def test_a_rank_hears_the_names_of_the_save_that_it_asks_for() -> None:
    """Rank 0 has asked for another by the time it says where the first one goes; its arrays are others then."""
    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=10)) as crew:
        first, seam, is_asked = crew.managers[0], ManagerSeam(crew.managers[0]), threading.Event()

        def noted(real: Any, handle: Any, state: Any) -> Any:
            found = real(handle, state)
            if handle.step == 2:
                is_asked.set()
            return found

        async def late(real: Any, save: Any) -> Any:
            if save.handle.step == 1:
                await asyncio.to_thread(is_asked.wait, 5)
            return await real(save)

        seam.instead(Point.PLAN, noted)
        seam.instead(Point.FIND_PLACE, late)

        def act(rank: int, manager: CheckpointManager) -> None:
            handles = [manager.save_async(adam(0) if rank == 0 else adam(1), 1), manager.save_async(adam(2), 2)]
            for handle in handles:
                handle.result()

        crew.each(act)
        assert_same(first.load(1)["optimizer"]["state"], adam(1)["optimizer"]["state"])
        assert_same(first.load(2), adam(2))


@pytest.mark.parametrize("busy", ["wait", "skip", "replace"])
def test_saves_with_something_new_in_a_hurry_end_alike_on_all_ranks(busy: str) -> None:
    def state(rank: int, step: int) -> dict[str, Any]:
        return {"w": np.full(1000, step), "own": PerRank(np.full(3, rank + step)), f"new{step // 3}": np.full(9, step)}

    with Crew(MemoryStorage(), 3, config=CheckpointManagerConfig(when_busy=busy, ranks_seconds=20)) as crew:

        def act(rank: int, manager: CheckpointManager) -> list[str]:
            handles = [manager.save_async(state(rank, step), step) for step in range(1, 30)]
            with suppress(SaveReplaced):
                manager.wait()
            manager.save(state(rank, 30), 30)
            return [handle.status for handle in handles]

        told = crew.each(act)
        assert set(told[0]) <= {"committed", {"wait": "committed", "skip": "skipped", "replace": "replaced"}[busy]}
        steps = crew.managers[0].list_checkpoints()
        assert steps[-1] == 30
        assert steps[:-1] == [step for step, status in enumerate(told[0], 1) if status == "committed"]
        assert all(each == told[0] for each in told) or busy == "replace"
        for step in steps:
            for rank, found in enumerate(crew.each(partial(loaded, step=step))):
                assert (int(found["w"][0]), int(found["own"][0])) == (step, rank + step)
                assert found[f"new{step // 3}"].tolist() == [step] * 9


@pytest.mark.parametrize("busy", ["wait", "skip", "replace"])
def test_saves_in_a_hurry_end_alike_on_all_ranks(busy: str) -> None:
    with Crew(MemoryStorage(), 3, config=CheckpointManagerConfig(when_busy=busy, ranks_seconds=20)) as crew:

        def act(rank: int, manager: CheckpointManager) -> None:
            for step in range(1, 30):
                manager.save_async({"w": np.full(1000, step), "own": PerRank(np.full(3, rank + step))}, step)
            with suppress(SaveReplaced):
                manager.wait()
            manager.save({"w": np.full(1000, 30), "own": PerRank(np.full(3, rank + 30))}, 30)

        crew.each(act)
        steps = crew.managers[0].list_checkpoints()
        assert steps[-1] == 30
        assert busy != "wait" or steps == list(range(1, 31))
        for step in steps:
            for rank, found in enumerate(crew.each(partial(loaded, step=step))):
                assert (int(found["w"][0]), int(found["own"][0])) == (step, rank + step)


def test_what_differs_from_rank_to_rank_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def state(rank: int) -> dict[str, Any]:
        return {"same": torch.ones(5), "buffer": torch.full((4,), rank), "own": PerRank(torch.tensor(rank))}

    with Crew(MemoryStorage(), 3) as crew:
        reports = crew.save([state(rank) for rank in range(3)], 1)
        crew.save([state(rank) for rank in range(3)], 2)
        found = crew.each(lambda rank, manager: manager.load())
    assert [each["buffer"].tolist() for each in found] == [[0] * 4] * 3
    told = [record.getMessage() for record in caplog.records if "mark them PerRank" in record.getMessage()]
    assert [each.partition(" for ")[0] for each in told] == [
        f"step 1: rank {rank} has other values than rank 0" for rank in (1, 2)
    ]
    assert all(" for buffer:" in each for each in told)
    assert len(reports[0].notes) == 2


def told_to_mark(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said to differ, without what to do about it."""
    told = [record.getMessage() for record in caplog.records if "mark them PerRank" in record.getMessage()]
    return [each.partition(". If each")[0] for each in told]


def test_plain_values_that_differ_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def state(rank: int, step: int) -> dict[str, Any]:
        common = {"w": np.full(3, step), "step": step, "empty": {}, "n": PerRank(rank), f"only{rank}": rank}
        return common | {"data": {"cursor": 100 * rank + step, "seen": [1] * (1 + rank)}, "lr": 0.1 * rank}

    with Crew(MemoryStorage(), 2) as crew:
        reports = crew.save([state(rank, 1) for rank in range(2)], 1)
        crew.save([state(rank, 2) for rank in range(2)], 2)
        crew.save([state(rank, 3) | {"new": np.ones(3), "late": rank} for rank in range(2)], 3)
        found = crew.managers[1].load()
    assert (found["data"]["cursor"], found["lr"], found["only1"], found["n"]) == (3, 0.0, 1, 1)
    assert told_to_mark(caplog) == [
        "step 1: rank 1 has other values than rank 0 for data/cursor, data/seen/1, lr: rank 0's are saved",
        "step 3: rank 1 has other values than rank 0 for late: rank 0's are saved",
    ]
    assert len(reports[0].notes) == 1


def test_plain_values_of_no_arrays_and_of_other_ranks_than_the_first(caplog: pytest.LogCaptureFixture) -> None:
    states = [{"a": 1}, {"stage": {"x": 1, "y": None}}, {"stage": {"x": True, "y": "text"}, "a": None}]
    with Crew(MemoryStorage(), 3) as crew:
        crew.save(states, 1)
    assert told_to_mark(caplog) == [
        "step 1: rank 2 has other values than rank 0 for a: rank 0's are saved",
        "step 1: rank 2 has other values than rank 1 for stage/y: rank 1's are saved",
    ]


def test_of_very_many_plain_values_a_few_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.checkpoint.comparing.REMEMBERED", 1000)
    with Crew(MemoryStorage(), 2) as crew:
        for step in (1, 2):
            crew.save([{"seen": [rank] * 5000, f"w{step}": np.ones(3)} for rank in range(2)], step)
    names = ", ".join(f"seen/{n}" for n in range(5))
    assert told_to_mark(caplog) == [
        f"step 1: rank 1 has other values than rank 0 for {names} and 4,995 more: rank 0's are saved"
    ]


def test_what_is_marked_as_the_same_must_be() -> None:
    crew = Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5))
    with pytest.raises(RankFailed, match=r"rank 1 on .* other values than rank 0 for x, which is marked Replicated"):
        crew.save([{"x": Replicated(np.full(10, rank))} for rank in range(2)], 1)
    assert crew.managers[0].list_checkpoints() == []


SCATTERED: dict[str, Callable[[float], Any]] = {
    "transposed": lambda value: torch.full((1200, 1200), value).t(),
    "every other": lambda value: torch.full((8, 4), value)[:, ::2],
    "conjugated": lambda value: torch.full((8,), complex(value, value)).conj(),
    "in Fortran's order": lambda value: np.asfortranarray(np.full((1200, 1200), value, np.float32)),
    "expanded": lambda value: torch.full((1200, 1), value).expand(1200, 1200),
}


@pytest.mark.parametrize("make", SCATTERED.values(), ids=SCATTERED)
def test_what_is_marked_as_the_same_must_be_however_it_lies_in_memory(make: Callable[[float], Any]) -> None:
    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew:
        with pytest.raises(RankFailed, match="other values than rank 0 for x, which is marked Replicated"):
            crew.save([{"x": Replicated(make(float(rank)))} for rank in range(2)], 1)
        crew.save([{"x": Replicated(make(1.0))} for _ in range(2)], 2)


def test_what_differs_is_told_however_it_lies_in_memory() -> None:
    def state(rank: float) -> dict[str, Any]:
        found = {name: make(rank) for name, make in SCATTERED.items() if name != "expanded"}
        small = torch.full((1,), 7.0 * rank)
        return found | {"small": small, "large": small.expand(1 << 40), "same": torch.ones(4, 3).t()}

    with Crew(MemoryStorage(), 2) as crew:
        (note,) = crew.save([state(float(rank)) for rank in range(2)], 1)[0].notes
    names = note.partition(" for ")[2].partition(":")[0].split(", ")
    assert names == [*(name for name in SCATTERED if name != "expanded"), "small"]


MISFITS = {
    "shape": ([{"x": Replicated(np.ones(n))} for n in (3, 4, 3)], "'x' is float64[3] on ranks 0, 2 and float64[4] on"),
    "type": ([{"x": Replicated(np.ones(3, t))} for t in "fdf"], "'x' is float32[3] on ranks 0, 2 and float64[3] on"),
    "kind": ([{"x": np.ones(3)}, b"bytes", b"bytes"], "it is a tree on rank 0 and bytes on ranks 1, 2"),
}


@pytest.mark.parametrize(("states", "why"), MISFITS.values(), ids=MISFITS)
def test_states_that_do_not_fit_together_are_no_damage(states: list[Any], why: str) -> None:
    """Nothing that is stored is damaged: all ranks are told who has what."""
    with Crew(MemoryStorage(), 3, config=CheckpointManagerConfig(ranks_seconds=5)) as crew:

        def act(rank: int, manager: CheckpointManager) -> str:
            with pytest.raises(RankFailed) as caught:
                manager.save(states[rank], 1)
            return str(caught.value)

        assert all(f"does not fit together. the state of step 1: {why}" in told for told in crew.each(act))
        assert crew.managers[0].list_checkpoints() == []
        crew.save([{"x": np.ones(3)}] * 3, 2)


@pytest.mark.parametrize("who", [0, 1])
def test_what_ranks_have_in_common_is_compared_until_a_save_was_well(
    who: int, caplog: pytest.LogCaptureFixture
) -> None:
    def states(apart: int) -> list[dict[str, Any]]:
        return [{"x": Replicated(np.full(10, apart * rank)), "w": np.full(3, rank)} for rank in range(2)]

    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew:
        failing = ManagerSeam(crew.managers[who]).fail(Point.WRITE, OSError("the disk is on fire"))
        with failing, pytest.raises(RankFailed if who else OSError):
            crew.save(states(apart=0), 1)
        assert "has other values than rank 0" not in caplog.text
        for step in (2, 3):  # and again, as long as it is not the same
            with pytest.raises(RankFailed, match="other values than rank 0 for x, which is marked Replicated"):
                crew.save(states(apart=1), step)
        crew.save(states(apart=0), 4)
        assert caplog.text.count("rank 1 has other values than rank 0 for w") == 1


def test_copies_of_different_saves_are_not_compared() -> None:
    """Rank 1 does not hear that the first save is committed, and says of its copies again at the second."""
    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew:
        deaf = ManagerSeam(crew.managers[1]).fail(Point.HEAR_OUTCOME, RankFailed("nothing was heard"))
        with deaf, pytest.raises(RankFailed, match="nothing was heard"):
            crew.save([{"x": Replicated(np.full(10, 1))}] * 2, 1)
        crew.save([{"x": Replicated(np.full(10, 2))}] * 2, 2)
        assert crew.managers[1].list_checkpoints() == [1, 2]


def test_a_rank_that_hears_nothing_of_rank_0_fails_its_saves_and_goes_on() -> None:
    storage, events = MemoryStorage(), list[SaveEvent]()
    config = CheckpointManagerConfig(ranks_seconds=0.1, max_failed_saves=2)
    state = {"w": np.ones(3)}
    manager = CheckpointManager(storage, rank=1, world_size=2, run_id="run", config=config)
    manager.listen(events.append)
    handles = [manager.save_async(state, step) for step in (1, 2)]
    assert [(handle.status, str(handle.error())[:22]) for handle in handles] == [
        ("failed", "rank 0 has not begun t")
    ] * 2
    assert [(event.outcome, event.step) for event in events] == [("failed", 1), ("failed", 2)]
    assert all(event.stall_seconds >= 0.1 for event in events)
    assert manager.saves == handles
    with pytest.raises(SaveFailed, match="2 saves in a row have failed; the last, of step 2"):
        manager.save_async(state, 3)
    with pytest.raises(RankFailed, match="rank 0 has not begun to save step 4"):
        manager.save(state, 4)
    manager.close()


def test_a_rank_that_began_before_rank_0_could_saves_with_it_later() -> None:
    faulty = FaultyStorage(MemoryStorage(), faults=Faults(before=1.0))
    config = CheckpointManagerConfig(ranks_seconds=0.5)
    states = [{"w": np.ones(3), "own": PerRank(np.full(2, rank))} for rank in range(2)]
    with Crew(faulty.inner, 2, config=config) as crew:
        crew.managers[0] = CheckpointManager(faulty, rank=0, world_size=2, run_id="run", config=config)
        handles = crew.each(lambda rank, manager: manager.save_async(states[rank], 1))
        for handle, error in zip(handles, (StorageUnavailable, RankFailed), strict=True):
            with pytest.raises(error):
                handle.result()
        faulty.faults = Faults()
        crew.save(states, 2)
        assert [each["own"].tolist() for each in crew.each(lambda rank, manager: manager.load())] == [[0, 0], [1, 1]]


def test_a_stuck_storage_keeps_no_training_loop() -> None:
    storage = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0, only=frozenset({"read"})))
    config = CheckpointManagerConfig(ranks_seconds=60, stuck_seconds=0.2)
    manager = CheckpointManager(storage, rank=1, world_size=2, run_id="run", config=config)
    handle = manager.save_async({"w": np.ones(3)}, 1)
    with pytest.raises(StorageUnavailable, match=r"hearing which arrays rank 0 has, in memory.* nothing came of read"):
        handle.result()
    storage.release()
    manager.close()


@pytest.mark.parametrize("who", [0, 1])
def test_a_save_that_is_stuck_on_one_rank_fails_on_all(who: int) -> None:
    """It is given up as one that another took the place of is, and is something else."""
    shared = MemoryStorage()
    stuck = FaultyStorage(shared, faults=Faults(stuck=1.0, only=frozenset({"put_if_absent"})))
    config = CheckpointManagerConfig(ranks_seconds=20, stuck_seconds=0.3)
    managers = [
        CheckpointManager(stuck if rank == who else shared, rank=rank, world_size=2, run_id="run", config=config)
        for rank in range(2)
    ]
    told: list[list[SaveEvent]] = [[], []]
    for manager, events in zip(managers, told, strict=True):
        manager.listen(events.append)
    state = {"w": np.ones(3), "own": PerRank(np.ones(3))}
    handles = [manager.save_async(state, 1) for manager in managers]
    for rank, handle in enumerate(handles):
        kind = StorageUnavailable if rank == who else RankFailed
        with pytest.raises(kind, match=r"the save of step 1 to .* is given up: .* nothing came of write"):
            handle.result()
    stuck.release()
    for manager in managers:
        manager.close()
    assert [[event.outcome for event in events] for events in told] == [["failed"], ["failed"]]


def test_that_a_save_is_skipped_is_told_or_not(caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 waits for a rank that is not there, and its storage is stuck when it is to tell of the next save."""
    storage = FaultyStorage(MemoryStorage())
    config = CheckpointManagerConfig(when_busy="skip", ranks_seconds=2, stuck_seconds=0.2)
    manager = CheckpointManager(storage, rank=0, world_size=2, run_id="run", config=config)
    first = manager.save_async({"w": np.ones(3)}, 1)
    until(lambda: any(call.path.endswith("/runs/run/1.1-1.json") for call in storage.calls))
    storage.faults = Faults(stuck=1.0, only=frozenset({"write"}))
    second = manager.save_async({"w": np.ones(3)}, 2)
    assert second.status == "skipped"
    assert "that step 2 is skipped could not be told to other ranks: telling other ranks" in caplog.text
    storage.release()
    with pytest.raises(RankFailed, match="the parts of rank 1 are not there"):
        first.result()
    manager.close()


def test_incremental_saves_of_what_is_split(tmp_path: Path) -> None:
    big = np.arange(1 << 20, dtype=np.float32).reshape(1024, -1)
    with Crew(tmp_path, 2, incremental=True) as crew:
        for step in (1, 2, 3):
            big[0] = step
            crew.save([{"x": Replicated(big), "own": PerRank(np.full(9, rank))} for rank in range(2)], step)
        for rank, found in enumerate(crew.each(lambda rank, manager: manager.load())):
            assert_same(found, {"x": big, "own": np.full(9, rank)})


def test_a_small_array_with_several_names_stays_one() -> None:
    x = torch.ones(3)
    state = {str(name): Replicated(x.view(3)) for name in range(8)}
    room = torch.zeros(3)
    with Crew(MemoryStorage(), 3) as crew:
        crew.save([state] * 3, 1)
        assert sum(part.written_bytes for part in crew.managers[0].describe().parts) == x.nbytes
        crew.managers[0].load(into=dict.fromkeys(state, room))
    assert torch.equal(room, x)


def in_stages(values: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """Two stages of two ranks, each of which has the layer of its stage in shards, under the same name."""
    states = []
    for rank in range(4):
        with rank_of(rank, (2, 2)) as mesh:
            shards = distribute_tensor(values[rank // 2], mesh["tensor"], [Shard(0)], src_data_rank=None)
            states.append({"layers.0.w": shards})
    return states


def test_shards_of_two_arrays_under_one_name_are_refused() -> None:
    config = CheckpointManagerConfig(ranks_seconds=5)
    with Crew(MemoryStorage(), 4, config=config) as crew:
        with pytest.raises(RankFailed, match=r"'layers.0.w' of rank 2 has other values than that of rank 0"):
            crew.save(in_stages([torch.zeros(8, 4), torch.ones(8, 4)]), 1)
        assert crew.managers[0].list_checkpoints() == []
        crew.save(in_stages([torch.ones(8, 4)] * 2), 2)
        assert torch.equal(crew.managers[0].load()["layers.0.w"], torch.ones(8, 4))


def test_copies_of_shards_are_the_same_in_whichever_checkpoint_they_lie(tmp_path: Path) -> None:
    """Of each shard one chunk changes, and is written; the other is referred to."""
    value = torch.zeros(2, CHUNK_BYTES + 9, dtype=torch.uint8)
    with Crew(tmp_path, 4, incremental=True) as crew:
        crew.save(in_stages([value] * 2), 1)
        value[:, -1] = 1
        reports = crew.save(in_stages([value] * 2), 2)
        assert all(report.referenced_bytes == CHUNK_BYTES for report in reports)
        other = value.clone()
        other[1, -1] = 2
        with pytest.raises(RankFailed, match="of rank 3 has other values than that of rank 1"):
            crew.save(in_stages([value, other]), 3)
        assert torch.equal(crew.managers[3].load()["layers.0.w"], value)


def test_views_of_one_memory_are_told_apart() -> None:
    x = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    state = {name: Replicated(each) for name, each in {"x": x, "t": x.T, "even": x[::2], "half": x[:512]}.items()}
    with Crew(MemoryStorage(), 2) as crew:
        crew.save([state] * 2, 1)
        found = crew.managers[1].load()
    assert all(np.array_equal(found[name], each.value) for name, each in state.items())


def test_what_is_in_tuples_is_joined_and_what_has_no_place_is_refused() -> None:
    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew:
        crew.save([{"d": (PerRank(np.full(2, rank)), 7)} for rank in range(2)], 1)
        found = crew.each(lambda rank, manager: manager.load())
        assert [each["d"][0].tolist() for each in found] == [[0, 0], [1, 1]]
        for states in ([{"l": [np.ones(1)]}, {"l": [np.ones(1), np.ones(2)]}], [{"l": None}, {"l": {"w": np.ones(3)}}]):
            with pytest.raises(RankFailed, match="of rank 1 has no place"):
                crew.save(states, 2)


def test_words_of_an_earlier_start_under_the_same_name_count_for_nothing() -> None:
    """Rank 1 is late, and has said of an earlier save of the same step that its part is durable."""
    storage = MemoryStorage()
    state = np.zeros((1024, 1024), np.float32)
    for number in (1, 2):
        with Crew(storage, 2, run="same", config=CheckpointManagerConfig(ranks_seconds=5)) as crew:
            if number == 2:
                crew.each(lambda rank, manager: manager.load(100))
            else:
                crew.save([{"x": Replicated(state)}] * 2, 100)

            with suppress(RankFailed):  # loud, if it must be
                crew.each(partial(save_late, state={"x": Replicated(np.full_like(state, number))}, step=200))
            found = crew.managers[0].load()["x"]
            assert len(np.unique(found)) == 1


def test_a_committed_save_is_one_whatever_becomes_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise StorageUnavailable("not now", storage="memory")

    monkeypatch.setattr(Words, "forget", broken)
    with Crew(MemoryStorage(), 2) as crew:
        for step in (1, 2, 3):
            crew.save([{"w": np.full(3, step)}] * 2, step)
        assert crew.managers[1].list_checkpoints() == [1, 2, 3]


@pytest.mark.parametrize("left", [b"", b"{", b'{"other": 1}'])
def test_what_other_starts_have_left_and_nobody_can_read_is_in_no_ones_way(left: bytes) -> None:
    storage = MemoryStorage()
    for name in ("names", "900.1"):
        background.run(storage.write(f"default/checkpoints/runs/other/{name}.json", left))
    with Crew(storage, 2) as crew:
        crew.save([state_of(0), state_of(1)], 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("who", [0, 1])
def test_a_forked_child_does_not_speak_for_its_parent(tmp_path: Path, who: int) -> None:
    with Crew(tmp_path, 2, config=CheckpointManagerConfig(ranks_seconds=10)) as crew:
        crew.save([state_of(0), state_of(1)], 1)
        child = os.fork()
        if not child:
            try:
                crew.managers[who].save(state_of(who), 2)
            except InvalidInput:
                os._exit(0)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        crew.save([state_of(0), state_of(1)], 2)
