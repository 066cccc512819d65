"""Copies to other storages: whole, verified, and there or not."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.assembling import WINDOW_BYTES, Outline, Stretch
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.copying import Copied, copy_checkpoint
from strata.checkpoint.differences import compare, read_contents
from strata.checkpoint.drafting import Content, Facts, drafted
from strata.checkpoint.lineage import read_lineage
from strata.checkpoint.manifest import CHUNK_BYTES, Chunk, digest_of
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.supplying import PartSupply
from strata.errors import CheckpointDamaged, Conflict, NotFound, StorageUnavailable
from strata.storage import BlockingStorage, MemoryStorage, StorageBackend
from strata.testing.faulty import Call, FaultyStorage
from tests.unit.checkpoint.dying import DyingStorage, deaths
from tests.unit.checkpoint.states import assert_same

FROZEN = torch.arange(3.0 * CHUNK_BYTES / 4)


def state(step: int) -> dict[str, Any]:
    weight = torch.full((64, 64), float(step))
    return {
        "frozen": FROZEN,
        "model": {"weight": weight, "tied": weight, "row": weight[3], "empty": torch.zeros(0, 4)},
        "half": torch.ones(5).bfloat16(),
        "raw": b"bytes",
        "step": step,
        "lr": (0.1, None),
    }


def source(*, incremental: bool = True) -> MemoryStorage:
    """Steps 1 to 3, of which the later ones refer to the first."""
    storage = MemoryStorage()
    with CheckpointManager(storage, incremental=incremental) as manager:
        for step in (1, 2, 3):
            manager.save(state(step), step=step, epoch=step, metrics={"loss": 1 / step, "odd": float("inf")})
    return storage


def copy(origin: StorageBackend, goal: StorageBackend, step: int, job: str = "default", **seen: Any) -> Copied:
    return background.run(copy_checkpoint(Store(origin, "default"), Folder(step), Store(goal, job), **seen))


def files_in(storage: StorageBackend) -> set[str]:
    return {entry.path for entry in BlockingStorage(storage).list_all()}


# -- what a copy is --------------------------------------------------------------------------------------------------


def test_a_copy_is_whole_and_the_same() -> None:
    origin, goal = source(), MemoryStorage()
    seen: list[int] = []
    made = copy(origin, goal, 3, progress=seen.append)
    assert made == Copied(Folder(3), sum(seen))
    with CheckpointReader(origin) as old, CheckpointReader(goal) as new:
        assert_same(new.load(), state(3))
        before, after = old.describe(3), new.describe(3)
        new.verify()
        assert new.list_checkpoints() == [3]
    assert (after.epoch, after.metrics, after.unix_seconds) == (before.epoch, before.metrics, before.unix_seconds)
    assert before.references
    assert after.references == []
    assert after.parts[0].written_bytes == after.parts[0].stored_bytes == made.bytes
    assert all(path.startswith("default/checkpoints/step_3/") for path in files_in(goal))


def test_a_copy_of_a_copy_has_the_same_digests() -> None:
    storages = [source(), MemoryStorage(), MemoryStorage()]
    copy(storages[0], storages[1], 3)
    copy(storages[1], storages[2], 3, job="default")
    first, second, third = (background.run(read_contents(Store(storage, "default"), Folder(3))) for storage in storages)
    assert not compare(first, second)
    assert not compare(first, third)

    def digests(contents: Any) -> list[list[str]]:
        return [[chunk.digest for chunk in tensor.chunks] for tensor in contents.parts[0].tensors]

    assert digests(first) == digests(second) == digests(third)


def test_bytes_are_copied_as_bytes() -> None:
    origin, goal = MemoryStorage(), MemoryStorage()
    data = os.urandom(WINDOW_BYTES + CHUNK_BYTES + 17)
    with CheckpointManager(origin) as manager:
        manager.save(data, step=1)
        manager.save(b"", step=2)
    copy(origin, goal, 1)
    copy(origin, goal, 2)
    assert BlockingStorage(goal).read("default/checkpoints/step_1/model.bin") == data
    with CheckpointReader(goal) as reader:
        assert reader.load(1) == data
        assert reader.load(2) == b""
        assert reader.verify(1) == len(data)


def test_a_state_without_tensors_is_copied_too() -> None:
    origin, goal = MemoryStorage(), MemoryStorage()
    with CheckpointManager(origin) as manager:
        manager.save({"only": "words"}, step=1)
    copy(origin, goal, 1)
    with CheckpointReader(goal) as reader:
        assert reader.load() == {"only": "words"}


def test_a_copy_into_another_job_of_the_same_root() -> None:
    storage = source()
    copy(storage, storage, 2, job="other")
    with CheckpointReader(storage, job_id="other") as reader:
        assert_same(reader.load(), state(2))


# -- what is refused -------------------------------------------------------------------------------------------------


def test_what_is_there_already_is_found_and_not_written_again() -> None:
    origin, goal = source(), MemoryStorage()
    copy(origin, goal, 2)
    before = files_in(goal)
    assert copy(origin, goal, 2).was_there
    assert files_in(goal) == before


def test_another_checkpoint_of_the_same_step_is_not_replaced() -> None:
    origin, goal = source(), MemoryStorage()
    with CheckpointManager(goal) as manager:
        manager.save({"mine": 1}, step=2)
    with pytest.raises(Conflict, match=r"step 2 is committed already in .*step_2: remove it first"):
        copy(origin, goal, 2)
    with CheckpointReader(goal) as reader:
        assert reader.load() == {"mine": 1}


def test_one_that_is_left_behind_is_not_replaced_either() -> None:
    origin, goal = source(), MemoryStorage()
    with CheckpointManager(goal) as manager:
        manager.save({"mine": 1}, step=1)
        manager.save({"mine": 2}, step=2)
    with CheckpointManager(goal) as manager:
        manager.load(1)
        manager.save({"mine": 3}, step=3)
    with pytest.raises(Conflict):
        copy(origin, goal, 2)


def test_damage_is_found_on_the_way_and_leaves_nothing() -> None:
    origin, goal = source(), MemoryStorage()
    (key,) = (path for path in files_in(origin) if "step_1/" in path and path.endswith(".safetensors"))
    data = bytearray(BlockingStorage(origin).read(key))
    data[data.index(FROZEN[1000:1010].numpy().tobytes())] ^= 1
    BlockingStorage(origin).write(key, data)
    with pytest.raises(CheckpointDamaged, match=r"step_1/.* is damaged: tensor 'frozen'"):
        copy(origin, goal, 3)
    assert files_in(goal) == set()


def test_a_checkpoint_that_is_not_there_is_not_copied() -> None:
    with pytest.raises(NotFound):
        copy(source(), MemoryStorage(), 9)


# -- beside a job ----------------------------------------------------------------------------------------------------


def test_a_copy_begins_no_term_and_supersedes_nobody() -> None:
    origin, goal = source(), MemoryStorage()
    with CheckpointManager(goal) as job:
        job.save({"n": 1}, step=100)
        lineage = background.run(read_lineage(Store(goal, "default")))
        copy(origin, goal, 3)
        assert background.run(read_lineage(Store(goal, "default"))) == lineage
        job.save({"n": 2}, step=101)
        assert job.list_checkpoints() == [3, 100, 101]
        assert job.describe(3).term == job.describe(100).term == 1


def test_where_nobody_has_saved_a_copy_is_of_no_term_and_a_job_goes_on_from_it() -> None:
    origin, goal = source(), MemoryStorage()
    copy(origin, goal, 3)
    with CheckpointManager(goal) as job:
        assert job.describe().term == 0
        assert_same(job.load(), state(3))
        job.save({"n": 4}, step=4)
        assert job.list_checkpoints() == [3, 4]
        assert_same(job.load(3), state(3))


def test_bytes_beside_a_job_take_a_name_of_their_own() -> None:
    origin, goal = MemoryStorage(), MemoryStorage()
    with CheckpointManager(origin) as manager:
        manager.save(b"copied", step=5)
    with CheckpointManager(goal) as job:
        job.save(b"saved", step=1)
        copy(origin, goal, 5)
        assert not [path for path in files_in(goal) if path.endswith("step_5/model.bin")]
        assert job.load(5) == b"copied"


class Meddled(FaultyStorage):
    """Does something else before the call of this number, and something more before another."""

    def __init__(self, inner: StorageBackend, first: int, second: int, work: AsyncIterator[None]) -> None:
        super().__init__(inner)
        self._turns, self._work = (first, second), work

    async def call(self, operation: str, path: str, *how: Any) -> Any:
        for _ in range(self._turns.count(len(self.calls) + 1)):
            await anext(self._work, None)
        return await super().call(operation, path, *how)


async def in_two_steps(store: Store, step: int) -> AsyncIterator[None]:
    """A checkpoint made beside the job: its files, then the commit."""
    async with drafted(store, step) as draft:
        content = Content(0, "tree", {"dict": {"w": {"numpy": 0}}}, [0], [Outline("w", "uint8", (5,), 5)])
        await draft.write(content, _ones, lambda count: None)
        yield
        await draft.commit(Facts(0.0, 0, {}, 1))
    yield


async def _ones(stretches: Sequence[Stretch]) -> None:
    for stretch in stretches:
        stretch.target[:] = 1


async def sweep(goal: MemoryStorage, first: int, second: int) -> list[Call]:
    work = in_two_steps(Store(goal, "default"), 7)
    meddled = Meddled(goal, first, second, work)
    await Checkpoints(Store(meddled, "default")).sweep()
    async for _ in work:  # what was left of it
        pass
    return meddled.calls


def test_a_job_that_sweeps_meanwhile_takes_nothing_whenever_it_looks() -> None:
    calls = len(background.run(sweep(with_a_job(), 1000, 1000)))
    assert calls > 3
    for first in range(calls + 2):
        for second in range(first, calls + 2):
            goal = with_a_job()
            background.run(sweep(goal, first, second))
            with CheckpointReader(goal) as reader:
                assert reader.list_checkpoints() == [1, 7]
                assert bytes(reader.load(7)["w"]) == b"\1" * 5
            assert not [path for path in files_in(goal) if "/readers/" in path]


def test_files_that_were_taken_away_nevertheless_make_no_checkpoint() -> None:
    goal, origin = MemoryStorage(), source()

    class Thief(MemoryStorage):
        """Whatever is written is gone again before the last word."""

        async def put_if_absent(self, path: str, data: Any) -> None:
            await super().put_if_absent(path, data)
            for entry in [entry async for entry in self.list_all()]:
                if entry.path.endswith(".safetensors"):
                    await self.delete(entry.path)

    goal = Thief()
    with pytest.raises(Conflict, match="changed or removed before the checkpoint was whole"):
        copy(origin, goal, 3)
    assert not [path for path in files_in(goal) if path.endswith("metadata.json")]


# -- crashes ---------------------------------------------------------------------------------------------------------


def small() -> MemoryStorage:
    storage = MemoryStorage()
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save({"a": torch.zeros(50), "b": torch.ones(9)}, step=1)
        manager.save({"a": torch.zeros(50), "b": torch.zeros(9)}, step=2)
    return storage


def blob() -> MemoryStorage:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(b"all of the bytes", step=2)
    return storage


def with_a_job() -> MemoryStorage:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save({"job": True}, step=1)
    return storage


def run_out_of_marks(storage: MemoryStorage) -> None:
    """As they do ten minutes after whoever put them died."""
    BlockingStorage(storage).delete_many([path for path in files_in(storage) if "/readers/" in path])


@pytest.mark.slow
@pytest.mark.parametrize("origin", [small, blob])
@pytest.mark.parametrize("before", [MemoryStorage, with_a_job], ids=["empty", "beside a job"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_call_leaves_the_copy_or_none_and_repeating_succeeds(
    origin: Any, before: Any, after: bool
) -> None:
    there = origin()
    outcomes = set()
    for inner in deaths(lambda storage: copy(there, storage, 2), before, after=after):
        with CheckpointReader(inner) as reader:
            outcomes.add(2 in reader.list_checkpoints())
            for step in reader.list_checkpoints():
                reader.verify(step)
        run_out_of_marks(inner)
        copy(there, inner, 2)
        with CheckpointReader(there) as old, CheckpointReader(inner) as new:
            assert_same(new.load(2), old.load(2))
            new.verify(2)
        left = {path for path in files_in(inner) if "/step_2/" in path}
        assert len(left) == 3, left  # those of the first try are gone, if it was not whole
    assert outcomes == {False, True}


def test_what_a_crash_left_is_kept_while_its_mark_counts_and_swept_by_the_next_run_after() -> None:
    there, goal = small(), MemoryStorage()
    counted = DyingStorage(MemoryStorage(), 10_000)
    copy(there, counted, 2)
    for at in range(2, len(counted.calls)):
        goal = MemoryStorage()
        with suppress(StorageUnavailable):
            copy(there, DyingStorage(goal, at), 2)
        if [path for path in files_in(goal) if path.endswith("metadata.json")]:
            break
        left = {path for path in files_in(goal) if "/step_2/" in path}
        assert background.run(Checkpoints(Store(goal, "default")).sweep()) == []
        run_out_of_marks(goal)
        with CheckpointManager(goal) as job:
            job.save({}, step=1)
        assert not left & files_in(goal)


def test_a_crash_of_the_source_leaves_nothing() -> None:
    there = small()
    counted = DyingStorage(there, 10_000)
    copy(counted, MemoryStorage(), 2)
    for at in range(1, len(counted.calls) + 1):
        goal = MemoryStorage()
        with suppress(StorageUnavailable):
            copy(DyingStorage(there, at), goal, 2)
        with CheckpointReader(goal) as reader:
            if not reader.list_checkpoints():
                assert files_in(goal) == set()
                copy(there, goal, 2)
            reader.verify(2)


# -- bytes on request ------------------------------------------------------------------------------------------------


def test_stretches_are_read_across_chunks_of_any_size() -> None:
    data = np.arange(1000, dtype=np.uint16).view(np.uint8)
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save({"w": data}, step=1)
    store = Store(storage, "default")
    contents = background.run(read_contents(store, Folder(1)))
    (part,) = contents.parts
    (tensor,) = part.tensors
    at, sizes = tensor.chunks[0].at, (300, 1, 699, 1000)
    chunks: list[Chunk] = []
    for size in sizes:
        start = sum(chunk.size for chunk in chunks)
        chunks.append(Chunk(0, at + start, size, digest_of(data[start : start + size].tobytes())))
    cut = msgspec.structs.replace(part, tensors=[msgspec.structs.replace(tensor, chunks=chunks)])
    supply = PartSupply(store, cut)
    for start, end in ((0, 2000), (0, 1), (299, 302), (301, 999), (1, 1999), (1999, 2000), (300, 301), (5, 5)):
        target = np.full(end - start, 255, np.uint8)
        background.run(supply([Stretch(0, start, target)]))
        assert np.array_equal(target, data[start:end])
