"""Who may take over: whoever came later. A process that was left over, and saves for the first time when others have
saved since it looked where to go on from, must not make them lose what they were told is committed.
"""

import pytest

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.lineage import NOBODY, begin_term
from strata.checkpoint.store import Store
from strata.errors import NotFound, StorageUnavailable, Superseded
from strata.storage import MemoryStorage
from strata.storage.memory import Space
from strata.testing.faulty import FaultyStorage


@pytest.fixture
def space() -> Space:
    return Space()


def manager_in(space: Space, keep_count: int | None = None) -> CheckpointManager:
    return CheckpointManager(MemoryStorage(space=space), keep_count=keep_count)


def test_one_that_loaded_before_others_began_is_superseded_by_them(space: Space) -> None:
    with manager_in(space) as first:
        first.save(b"1", step=1)
    with manager_in(space, keep_count=1) as left_over, manager_in(space, keep_count=1) as later:
        assert left_over.load() == later.load() == b"1"
        for step in (2, 3):
            later.save(b"later", step=step)
        with pytest.raises(Superseded, match="must not save any more"):
            left_over.save(b"left over", step=2)
        later.save(b"later", step=4)
        assert later.latest_step() == 4


def test_so_is_one_that_looked_after_they_began_if_they_have_saved_since(space: Space) -> None:
    with manager_in(space) as job, manager_in(space) as left_over:
        job.save(b"1", step=1)
        assert left_over.load() == b"1"
        job.save(b"2", step=2)
        with pytest.raises(Superseded):
            left_over.save(b"left over", step=2)
        assert job.load() == b"2"


@pytest.mark.parametrize("looks", ["latest_step", "load"])
def test_so_is_one_that_found_nothing_when_it_looked(space: Space, looks: str) -> None:
    with manager_in(space) as left_over, manager_in(space) as job:
        if looks == "latest_step":
            assert left_over.latest_step() is None
        else:
            with pytest.raises(NotFound):
                left_over.load()
        for step in (0, 1):
            job.save(b"job", step=step)
        with pytest.raises(Superseded):
            left_over.save(b"left over", step=0)
        assert job.latest_step() == 1


def test_whoever_looks_after_all_that_was_saved_takes_over(space: Space) -> None:
    with manager_in(space) as before, manager_in(space) as after:
        for step in (1, 2, 3):
            before.save(b"before", step=step)
        after.load(1)  # and goes back there, on purpose
        after.save(b"after", step=2)
        assert after.load() == b"after"
        with pytest.raises(Superseded):
            before.save(b"before", step=4)


def test_a_term_whose_answer_did_not_come_is_its_own_and_nobody_elses(space: Space) -> None:
    with manager_in(space) as first:
        first.save(b"1", step=1)
    faulty = FaultyStorage(MemoryStorage(space=space))
    faulty.fail("compare_and_swap", 1, "after")
    with CheckpointManager(faulty) as manager:
        manager.load()
        with pytest.raises(StorageUnavailable):
            manager.save(b"2", step=2)
        manager.save(b"3", step=3)
        assert manager.latest_step() == 3


def test_nobody_is_a_term_that_anybody_comes_after(space: Space) -> None:
    store = Store(MemoryStorage(space=space), "job")
    first = background.run(begin_term(store, -1, "host:1:aa", after=NOBODY))
    assert first.term == 1
    with pytest.raises(Superseded):
        background.run(begin_term(store, -1, "host:2:bb", after=NOBODY))
    assert background.run(begin_term(store, -1, "host:2:bb", after=first)).term == 2
