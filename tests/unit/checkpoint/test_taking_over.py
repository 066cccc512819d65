"""Who may take over: the process that loaded later, or found nothing to load. A query decides nothing. A process that
began before another took over, and loaded late, makes that lose nothing that it commits.

A process that was left over, and saves for the first time when others have taken over since it loaded, must not make
them lose what they were told is committed. And what it may yet commit itself keeps none of them out.
"""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.lineage import NOBODY, begin_term
from strata.checkpoint.store import Store
from strata.errors import NotFound, StorageUnavailable, Superseded
from strata.storage import MemoryStorage
from strata.storage.memory import Space
from strata.testing.faulty import FaultyStorage
from tests.unit.checkpoint.crews import Crew, state_of


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


def test_and_it_does_not_come_back_by_loading_again(space: Space) -> None:
    with manager_in(space) as first:
        first.save(b"1", step=1)
    with manager_in(space) as left_over, manager_in(space) as later:
        left_over.load()
        later.save(b"later", step=2)
        for step in (3, 4):
            with pytest.raises(Superseded):
                left_over.save(b"left over", step=step)
            assert left_over.load() == b"later"
        later.save(b"later", step=3)
        assert later.list_checkpoints() == [1, 2, 3]


def test_so_is_one_that_found_nothing_to_load(space: Space) -> None:
    with manager_in(space) as left_over, manager_in(space) as job:
        with pytest.raises(NotFound):
            left_over.load()
        for step in (0, 1):
            job.save(b"job", step=step)
        with pytest.raises(Superseded):
            left_over.save(b"left over", step=0)
        assert job.latest_step() == 1


def _nothing_there(query: Callable[[], object]) -> None:
    with pytest.raises(NotFound):
        query()


QUERIES: dict[str, Callable[[CheckpointManager], object]] = {
    "latest_step": lambda manager: manager.latest_step(),
    "list_checkpoints": lambda manager: manager.list_checkpoints(),
    "tiers": lambda manager: manager.tiers(),
    "describe": lambda manager: _nothing_there(manager.describe),
    "verify": lambda manager: _nothing_there(manager.verify),
    "load_slice": lambda manager: _nothing_there(lambda: manager.load_slice("weights")),
    "load_a_part": lambda manager: _nothing_there(lambda: manager.load(keys="weights")),
    "saves": lambda manager: manager.saves,
    "check": lambda manager: manager.check({"weights": 1}),
    "prepare": lambda manager: manager.prepare({"weights": 1}),
    "wait": lambda manager: manager.wait(),
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_takes_nothing_over_and_gives_nothing_up(space: Space, query: str) -> None:
    """One that asks only where things are may save as one that did not ask: it takes over by its first save."""
    with manager_in(space) as asks, manager_in(space) as job:
        QUERIES[query](asks)
        job.save({"weights": 1}, step=1)
        asks.save({"weights": 2}, step=2)
        with pytest.raises(Superseded):
            job.save({"weights": 1}, step=3)


@pytest.mark.parametrize("query", QUERIES)
def test_one_that_was_left_behind_is_not_let_in_again_by_a_query(space: Space, query: str) -> None:
    with manager_in(space) as left_over, manager_in(space) as job:
        with pytest.raises(NotFound):
            left_over.load()
        job.save({"weights": 1}, step=1)
        job.delete(1)
        QUERIES[query](left_over)
        with pytest.raises(Superseded):
            left_over.save({"weights": 2}, step=1)


@pytest.mark.parametrize("query", ["latest_step", "list_checkpoints", "describe", "tiers"])
def test_nor_by_one_that_comes_while_it_loads(space: Space, query: str) -> None:
    with manager_in(space) as job:
        job.save({"weights": 1}, step=1)
    with manager_in(space) as left_over, manager_in(space) as later:

        class Restored:
            """Is given its state when others have taken over, and somebody has looked at what they saved."""

            def strata_state(self) -> dict[str, int]:
                return {"weights": 0}

            def load_strata_state(self, tree: dict[str, int]) -> None:
                later.load()
                later.save({"weights": 2}, step=2)
                QUERIES[query](left_over) if query != "describe" else left_over.describe()

        left_over.load(into=Restored())
        with pytest.raises(Superseded):
            left_over.save({"weights": 3}, step=2)


def test_one_that_was_left_over_and_loaded_late_takes_nothing_back(space: Space) -> None:
    with manager_in(space) as left_over, manager_in(space) as live:
        live.save(b"1", step=1)
        assert left_over.load() == b"1"
        live.save(b"2", step=2)
        with pytest.raises(Superseded, match="another process writes the checkpoints"):
            left_over.save(b"left over", step=2)
        live.save(b"3", step=3)
        assert live.list_checkpoints() == [1, 2, 3]


def test_whoever_looks_after_all_that_was_saved_takes_over(space: Space) -> None:
    with manager_in(space) as before, manager_in(space) as after:
        for step in (1, 2, 3):
            before.save(b"before", step=step)
        after.load(1)  # and goes back there, on purpose
        after.save(b"after", step=2)
        assert after.load() == b"after"
        with pytest.raises(Superseded):
            before.save(b"before", step=4)


def test_what_the_one_before_commits_after_that_is_left_behind(space: Space, caplog: pytest.LogCaptureFixture) -> None:
    with manager_in(space) as before, ExitStack() as stack:
        before.save(b"before", step=1)
        after = stack.enter_context(manager_in(space))
        assert after.load() == b"before"
        for step in (2, 3):
            before.save(b"before", step=step)  # was under way when the job was started again
        with caplog.at_level("WARNING", logger="strata.checkpoint"):
            after.save(b"after", step=2)
        assert "goes on from step 1, and leaves steps 2, 3 behind" in caplog.text
        assert after.list_checkpoints() == [1, 2]
        assert after.load() == b"after"
        with pytest.raises(Superseded):
            before.save(b"before", step=4)
        after.save(b"after", step=3)
        assert after.load() == b"after"


def test_so_it_is_with_several_ranks(space: Space) -> None:
    with Crew(MemoryStorage(space=space), 2, "old") as old, ExitStack() as stack:
        for step in (1, 2):
            old.save([state_of(rank, step) for rank in range(2)], step)
        new = stack.enter_context(Crew(MemoryStorage(space=space), 2, "new"))
        assert [found["step"] for found in new.each(lambda _, manager: manager.load())] == [2, 2]
        old.save([state_of(rank, 3) for rank in range(2)], 3)
        for step in (3, 4):
            new.save([{**state_of(rank, step), "by": "new"} for rank in range(2)], step)
        with pytest.raises(Superseded):
            old.save([state_of(rank, 4) for rank in range(2)], 4)
        assert new.managers[0].list_checkpoints() == [1, 2, 3, 4]
        assert [found["by"] for found in new.each(lambda _, manager: manager.load(3))] == ["new", "new"]


def test_one_that_only_loads_disturbs_nobody(space: Space) -> None:
    with manager_in(space) as job, manager_in(space) as looks:
        job.save(b"1", step=1)
        assert looks.load() == b"1"
        job.save(b"2", step=2)
        assert looks.load() == b"2"
        job.save(b"3", step=3)


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
