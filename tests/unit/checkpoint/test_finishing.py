"""Places of checkpoints, as ranks and the coordinator tell them, and what is decided and has no manifest yet."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from strata.checkpoint import CheckpointManager
from strata.checkpoint.finishing import Decision, finish, place_of, placed, term_of
from strata.checkpoint.lineage import begin_term
from strata.checkpoint.store import Store
from strata.errors import CheckpointDamaged, Conflict, StorageFull, Superseded
from strata.storage import BlockingStorage, MemoryStorage
from strata.storage.backend import Data
from strata.testing.faulty import FaultyStorage


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_a_place_is_a_folder_and_the_name_of_an_attempt() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(b"state", step=10)
        metadata = manager.describe()
    store = Store(storage, "default")
    (folder,) = run(store.folders())
    assert placed(place_of(folder, metadata)) == (folder, metadata.attempt)


@pytest.mark.parametrize(
    "place",
    ["", "step_10", "step_10 ", "step_10 ../../etc", "../step_10 1-ab", "step_10 1-ab/c", "step_10 x", "step_-1 1-ab"],
)
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(CheckpointDamaged, match="no place of a checkpoint"):
        placed(place)


def decided(storage: MemoryStorage, state: Any = b"state") -> tuple[Store, Decision]:
    """A checkpoint whose manifest was never put."""
    with CheckpointManager(storage) as manager:
        manager.save(state, step=10, epoch=3, metrics={"loss": 0.5})
    store = Store(storage, "default")
    (folder,) = run(store.folders())
    metadata = run(store.metadata(folder))
    run(storage.delete(store.key(folder.name, "metadata.json")))
    store.forget(folder)
    return store, Decision(place_of(folder, metadata), 3, {"loss": "0.5"}, metadata.parts, 1)


def test_whoever_finishes_it_and_however_often_it_is_the_same_checkpoint() -> None:
    storage = MemoryStorage()
    store, decision = decided(storage)
    first = run(finish(store, decision))
    assert run(finish(Store(storage, "default"), decision)) == first
    with CheckpointManager(storage) as manager:
        assert manager.load() == b"state"
        assert (manager.describe().epoch, manager.describe().metrics) == (3, {"loss": 0.5})


def test_it_is_put_where_it_was_said_to_be_or_nowhere() -> None:
    """Others have been told of that place, and would look for it there."""
    storage, manifest = MemoryStorage(), "default/checkpoints/step_10/metadata.json"
    blocking = BlockingStorage(storage)
    with CheckpointManager(storage) as sleeper:
        sleeper.save({"by": "the run before"}, step=10)
    late = blocking.read(manifest)
    blocking.delete(manifest)
    store, decision = decided(storage, {"by": "this run"})
    blocking.write(manifest, late)
    with pytest.raises(Conflict):
        run(finish(store, decision))
    assert [folder.name for folder in run(store.folders())] == ["step_10"]


def test_one_whose_manifest_the_storage_refuses_is_finished_later() -> None:
    """The disk may be full, or this rank not be allowed to write: the parts are not its to take away."""
    storage = MemoryStorage()
    _, decision = decided(storage)
    with pytest.raises(StorageFull):
        run(finish(Store(Full(storage), "default"), decision))
    run(finish(Store(storage, "default"), decision))
    with CheckpointManager(storage) as manager:
        assert manager.load() == b"state"


class Full(FaultyStorage):
    async def put_if_absent(self, path: str, data: Data) -> None:
        raise StorageFull("there is no room", storage=self.url, key=path)


def test_what_another_run_has_left_behind_is_not_finished() -> None:
    storage = MemoryStorage()
    store, decision = decided(storage)
    run(begin_term(store, -1, "another:1:abcd"))
    with pytest.raises(Superseded):
        run(finish(store, decision))
    assert run(store.folders()) == []


def test_what_was_finished_before_another_run_began_stays_so() -> None:
    store, decision = decided(MemoryStorage())
    first = run(finish(store, decision))
    run(begin_term(store, 10, "another:1:abcd"))
    assert run(finish(store, decision)) == first


def test_a_part_that_is_gone_is_told() -> None:
    storage = MemoryStorage()
    store, decision = decided(storage)
    run(storage.delete(store.key(decision.parts[0].path)))
    with pytest.raises(CheckpointDamaged, match="is missing"):
        run(finish(store, decision))


def test_the_term_of_an_attempt_is_the_newest() -> None:
    store = Store(MemoryStorage(), "default")
    term = run(begin_term(store, -1, "host:1:abcd"))
    assert run(term_of(store, "1-abcd01")) == term
    assert run(term_of(store, "1-abcd01", term)) == term
    with pytest.raises(Superseded):
        run(term_of(store, "1-ffff01"))
