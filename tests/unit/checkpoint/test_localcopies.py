"""Ranks on machines with disks of their own: what they save is behind, and what they load comes from their disks."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.checkpoint.marks import PerRank, Replicated
from strata.errors import CheckpointDamaged, RankFailed, StorageUnavailable
from strata.storage import LocalStorage, MemoryStorage, StorageBackend
from strata.testing.faulty import Faults, FaultyStorage
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.states import assert_same

CONFIG = CheckpointManagerConfig(ranks_seconds=20)


def state_of(rank: int, step: int) -> dict[str, Any]:
    return {"w": np.full(4000, step), "same": Replicated(np.arange(9) + step), "own": PerRank(np.full(3000, rank))}


def bare(rank: int, step: int) -> dict[str, Any]:
    return {"w": np.full(4000, step), "same": np.arange(9) + step, "own": np.full(3000, rank)}


class Machines(Crew):
    """Each rank on a machine of its own, with its disk."""

    def __init__(
        self, far: StorageBackend | Sequence[StorageBackend], disks: Sequence[Any], run: str = "run", **given: Any
    ) -> None:
        behind = far if isinstance(far, Sequence) else [far] * len(disks)
        given = {"world_size": len(disks), "run_id": run, "config": CONFIG, **given}
        self.managers = [
            CheckpointManager(each, rank=rank, local=disk, **given)
            for rank, (each, disk) in enumerate(zip(behind, disks, strict=True))
        ]


def save(crew: Crew, *steps: int) -> None:
    for step in steps:
        crew.save([state_of(rank, step) for rank in range(len(crew.managers))], step)
    crew.each(lambda rank, manager: manager.wait())


def check(crew: Crew, step: int) -> None:
    for rank, found in enumerate(crew.each(lambda rank, manager: manager.load())):
        assert_same(found, bare(rank, step))


def files(disk: Path) -> list[str]:
    return sorted(path.name for path in disk.rglob("part-*"))


def reads(storage: FaultyStorage) -> list[str]:
    return [call.path for call in storage.calls if call.operation.startswith("read") and "safetensors" in call.path]


def test_each_machine_keeps_what_its_ranks_saved_and_loads_it_from_there(tmp_path: Path) -> None:
    far = MemoryStorage()
    disks = [tmp_path / "a", tmp_path / "b"]
    with Machines(far, disks) as crew:
        save(crew, 1)
    for rank, disk in enumerate(disks):
        assert files(disk)
        assert all(name.startswith(f"part-{rank}-") for name in files(disk))
    seen = [FaultyStorage(far), FaultyStorage(far)]
    with Machines(seen, disks, run="again") as crew:
        check(crew, 1)
    for rank, storage in enumerate(seen):
        own = {path.rpartition("/")[2].split("-")[1] for path in reads(storage)}
        assert own == ({"0"} if rank else set())  # what rank 0 has stored for both is on no disk of rank 1's
    with CheckpointReader(far) as reader:
        assert reader.verify() > 0


def test_files_that_are_written_as_streams_are_copied_too(tmp_path: Path) -> None:
    far, disks = LocalStorage(tmp_path / "far"), [tmp_path / "a", tmp_path / "b"]
    with Machines(far, disks) as crew:
        save(crew, 1)
        for disk in disks:
            for copy in disk.rglob("*.safetensors"):
                assert copy.read_bytes() == next((tmp_path / "far").rglob(copy.name)).read_bytes()
            assert any(name.endswith(".safetensors") for name in files(disk))
        check(crew, 1)


def test_a_machine_that_lost_its_disk_loads_from_behind(tmp_path: Path) -> None:
    far = MemoryStorage()
    with Machines(far, [tmp_path / "a", tmp_path / "b"]) as crew:
        save(crew, 1)
    with Machines(far, [tmp_path / "a", tmp_path / "new"], run="again") as crew:
        check(crew, 1)
        save(crew, 2)
        check(crew, 2)


@pytest.mark.parametrize("how", ["changed", "cut", "emptied"])
def test_a_copy_that_is_damaged_is_replaced_by_what_is_behind(tmp_path: Path, how: str) -> None:
    far, disks = MemoryStorage(), [tmp_path / "a", tmp_path / "b"]
    with Machines(far, disks) as crew:
        save(crew, 1)
        for file in disks[1].rglob("*.safetensors"):
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes({"changed": bytes(data), "cut": bytes(data[:-10]), "emptied": b""}[how])
        check(crew, 1)
        check(crew, 1)


def test_what_is_damaged_behind_is_told(tmp_path: Path) -> None:
    far = LocalStorage(tmp_path / "far")
    with Machines(far, [tmp_path / "a", tmp_path / "b"]) as crew:
        save(crew, 1)
    for file in (tmp_path / "far").rglob("part-0-*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with Machines(far, [tmp_path / "new", tmp_path / "b"], run="again") as crew:
        with pytest.raises(CheckpointDamaged):
            crew.managers[0].load()
        with pytest.raises(CheckpointDamaged):
            crew.managers[0].verify()


@pytest.mark.parametrize("operation", ["write", "writer.write", "list_all", "delete_many", "read_into", "read"])
def test_a_disk_that_fails_costs_the_copies_and_nothing_more(tmp_path: Path, operation: str) -> None:
    far = LocalStorage(tmp_path / "far") if operation == "writer.write" else MemoryStorage()
    faults = Faults(before=1.0, only=frozenset({operation}))
    disks = [FaultyStorage(LocalStorage(tmp_path / name), faults=faults) for name in "ab"]
    with Machines(far, disks) as crew:
        save(crew, 1, 2, 3)
        check(crew, 3)
    assert all(any(call.outcome == "before" for call in disk.calls) for disk in disks), "they failed indeed"
    with Crew(far, 2, run="again", config=CONFIG) as crew:
        check(crew, 3)


@pytest.mark.parametrize("operation", ["write", "read", "read_into"])
def test_a_disk_that_is_stuck_is_told_by_its_name(tmp_path: Path, operation: str) -> None:
    disk = FaultyStorage(LocalStorage(tmp_path / "disk"))
    with Machines(MemoryStorage(), [disk, tmp_path / "other"], config=replace(CONFIG, stuck_seconds=1)) as crew:
        save(crew, 1)
        disk.faults = Faults(stuck=1.0, only=frozenset({operation}))
        act = partial(save, crew, 2) if operation == "write" else partial(crew.managers[0].load, timeout=1)
        with pytest.raises(StorageUnavailable) as stuck:
            act()
        disk.release()
    assert f"nothing came of {operation.partition('_')[0]} {disk.url}/" in str(stuck.value)
    assert "memory:///default/checkpoints/step" not in str(stuck.value)


def test_the_latest_stay_on_the_disk(tmp_path: Path) -> None:
    far, disks = MemoryStorage(), [tmp_path / "a", tmp_path / "b"]
    with Machines(far, disks) as crew:
        save(crew, 1, 2, 3, 10)
        for disk in disks:
            assert {path.parent.name for path in disk.rglob("part-*")} == {"step_3", "step_10"}
        crew.each(lambda rank, manager: manager.load(2))
        save(crew, 4)
        for disk in disks:
            assert {path.parent.name for path in disk.rglob("part-*")} == {"step_10", "step_4"}
        check(crew, 4)


def test_what_is_deleted_is_deleted_on_this_machine_too(tmp_path: Path) -> None:
    far, disks = MemoryStorage(), [tmp_path / "a", tmp_path / "b"]
    with Machines(far, disks) as crew:
        save(crew, 1, 2)
        crew.managers[0].delete(1)
        assert {path.parent.name for path in disks[0].rglob("part-0-*")} == {"step_2"}


def test_a_save_that_fails_leaves_no_copy(tmp_path: Path) -> None:
    far = FaultyStorage(MemoryStorage())
    disks = [tmp_path / "a", tmp_path / "b"]
    with Machines(far, disks) as crew:
        save(crew, 1)
        crew.managers[1].close()
        with pytest.raises(RankFailed, match="closed"):
            save(crew, 2)
    assert {path.parent.name for path in disks[1].rglob("part-*")} == {"step_1"}


def test_bytes_are_kept_behind_alone(tmp_path: Path) -> None:
    """Their file's name does not tell which save it is of."""
    far, disks = MemoryStorage(), [tmp_path / "a", tmp_path / "b"]
    with Machines(far, disks) as crew:
        crew.save([b"first", b"second"], 1)
        assert crew.each(lambda rank, manager: manager.load()) == [b"first", b"second"]
    assert not list(tmp_path.rglob("model*"))


# -- several ranks on one machine --------------------------------------------------------------------------------------


def large(step: int) -> dict[str, Any]:
    return {"w": np.arange(3 << 20, dtype=np.float64) + step, "small": np.ones(5)}


def stretches(storages: Sequence[FaultyStorage]) -> int:
    """How often the files of arrays were read from, in all."""
    return sum(len(reads(each)) for each in storages)


def test_ranks_that_share_a_disk_read_each_stretch_from_behind_once(tmp_path: Path) -> None:
    far = MemoryStorage()
    with Crew(far, 3, run="elsewhere", config=CONFIG) as crew:
        crew.save([large(1)] * 3, 1)
    alone = FaultyStorage(far)
    with CheckpointManager(alone) as manager:
        manager.load()
    seen = [FaultyStorage(far) for _ in range(3)]
    with Machines(seen, [tmp_path] * 3, run="here") as crew:
        for found in crew.each(lambda rank, manager: manager.load()):
            assert_same(found, large(1))
        assert stretches(seen) == stretches([alone])
        for found in crew.each(lambda rank, manager: manager.load()):
            assert_same(found, large(1))
        assert stretches(seen) == stretches([alone])
        crew.save([large(2)] * 3, 2)
        crew.save([large(3)] * 3, 3)
        crew.each(lambda rank, manager: manager.wait())
        assert not list(tmp_path.rglob("step_1/*@*"))
    assert not list(tmp_path.rglob("*.claim"))


@pytest.mark.parametrize("had", ["a number of its own", "the number of one that is here now"])
def test_what_a_process_that_died_had_claimed_is_fetched_by_another(
    tmp_path: Path, had: str, caplog: pytest.LogCaptureFixture
) -> None:
    far = MemoryStorage()
    with CheckpointManager(far) as manager:
        manager.save(large(1), step=1)
    program = "from strata.checkpoint.claims import own_name; print(own_name(), end='')"
    dead = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    if had != "a number of its own":
        dead = b" ".join([str(os.getpid()).encode(), dead.partition(b" ")[2]])
    with Machines(far, [tmp_path] * 2) as crew:
        first = crew.managers[0]
        first.load()
        for piece in tmp_path.rglob("*@*"):
            piece.unlink()
            piece.with_name(f"{piece.name}.claim").write_bytes(dead)
        for found in crew.each(lambda rank, manager: manager.load()):
            assert_same(found, large(1))
    assert "was not fetched" not in caplog.text


def test_a_stretch_that_is_damaged_on_the_disk_is_read_from_behind(tmp_path: Path) -> None:
    far = MemoryStorage()
    with CheckpointManager(far) as manager:
        manager.save(large(1), step=1)
    with Machines(far, [tmp_path] * 2) as crew:
        crew.managers[0].load()
        (piece,) = tmp_path.rglob("*@*")
        data = bytearray(piece.read_bytes())
        data[1000] ^= 1
        piece.write_bytes(data)
        for found in crew.each(lambda rank, manager: manager.load()):
            assert_same(found, large(1))


@pytest.mark.parametrize("how", ["cut", "removed"])
def test_a_stretch_that_cannot_be_read_on_the_disk_is_read_from_behind(tmp_path: Path, how: str) -> None:
    """One that is removed goes between the look whether it is there and the reading."""
    far, near = MemoryStorage(), Fading(LocalStorage(tmp_path))
    with CheckpointManager(far) as manager:
        manager.save(large(1), step=1)
    with Machines(far, [near] * 2) as crew:
        crew.managers[0].load()
        (piece,) = tmp_path.rglob("*@*")
        if how == "cut":
            piece.write_bytes(piece.read_bytes()[:1000])
        near.fades = how == "removed"
        for found in crew.each(lambda rank, manager: manager.load()):
            assert_same(found, large(1))


class Fading(FaultyStorage):
    """A disk from which another rank removes what was just seen there."""

    fades = False

    async def exists(self, path: str) -> bool:
        found = await super().exists(path)
        if self.fades and found and "@" in path:
            await self.delete(path)
        return found
