"""Back to an older step by hand: what came after is never picked again, and whoever still runs is told."""

import pytest

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.rollback import behind, roll_back
from strata.checkpoint.store import Store
from strata.errors import NotFound, Superseded
from strata.storage import MemoryStorage
from tests.unit.checkpoint.crews import Crew


def checkpoints(storage: MemoryStorage) -> Checkpoints:
    return Checkpoints(Store(storage, "default"))


def test_the_job_goes_on_from_there() -> None:
    storage = MemoryStorage()
    running = CheckpointManager(storage)
    for step in (1, 2, 3, 4):
        running.save({"step": step}, step)
    assert background.run(behind(checkpoints(storage), 2)) == [3, 4]
    assert background.run(roll_back(checkpoints(storage), 2)) == [3, 4]
    with CheckpointReader(storage) as reader:
        assert (reader.latest_step(), reader.list_checkpoints(), reader.load()) == (2, [1, 2], {"step": 2})
        assert reader.load(4) == {"step": 4}
    with pytest.raises(Superseded):
        running.save({}, 5)
    with CheckpointManager(storage) as again:
        again.load()
        again.save({"step": "3 again"}, 3)
        assert again.list_checkpoints() == [1, 2, 3]
        assert again.load() == {"step": "3 again"}


def test_only_to_what_led_here() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        for step in (1, 2, 3):
            manager.save({}, step)
        manager.load(1)
        manager.save({}, 5)
    for step in (2, 3):
        with pytest.raises(NotFound, match=f"step {step} of .* is not on the line .*: 1, 5"):
            background.run(roll_back(checkpoints(storage), step))
    with pytest.raises(NotFound, match=r"there is no committed checkpoint of step 4 in .*: 1, 5"):
        background.run(roll_back(checkpoints(storage), 4))
    assert background.run(roll_back(checkpoints(storage), 1)) == [5]
    assert background.run(behind(checkpoints(storage), 1)) == []


def test_all_ranks_of_a_job_go_back() -> None:
    storage = MemoryStorage()
    with Crew(storage, 2, run="one") as crew:
        for step in (1, 2, 3):
            crew.save([{"step": step}] * 2, step)
    background.run(roll_back(checkpoints(storage), 1))
    with Crew(storage, 2, run="two") as crew:
        assert crew.each(lambda rank, manager: manager.load()) == [{"step": 1}] * 2
        crew.save([{"step": "new"}] * 2, 2)
        assert crew.managers[1].list_checkpoints() == [1, 2]
    assert CheckpointReader(storage).load() == {"step": "new"}
