"""A training loop whose saves fail: what matters is whether the last one did."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from strata import CheckpointManager, MemoryStorage, StorageError, Training
from strata.data import Loader
from strata.testing import FaultyStorage
from strata.worker.preemption import REQUEUE, SIGNALS, Preempted
from tests.integration.data.jobs import write_rows

STEPS = 11


@pytest.fixture
def signals() -> Iterator[None]:
    """As they were before."""
    before = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def trained(folder: Path, storage: FaultyStorage, failing: int, *, noticed: int = -1) -> CheckpointManager:
    """Saves at steps 3, 6, 9 and at the end; the first that comes after so many steps fails. `noticed`: the step at
    which a notice comes."""
    state, manager = {"steps": np.zeros(1, np.int64)}, CheckpointManager(storage)
    loader = Loader(str(write_rows(folder / "rows")), global_batch_size=20, format="parquet")
    with Training(state, loader, manager, save_every=3) as training:
        for _ in training:
            if training.completed == failing:
                manager.wait()
                storage.fail("write", Counter(call.operation for call in storage.calls)["write"] + 1)
            if training.completed == noticed:
                os.kill(os.getpid(), signal.SIGTERM)
            state["steps"] += 1
    return manager


def test_one_that_failed_before_the_last_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = FaultyStorage(MemoryStorage())
    trained(tmp_path, storage, failing=4)
    with CheckpointManager(storage) as manager:
        assert manager.list_checkpoints() == [0, 3, 9, STEPS]
    assert "a save before it failed" in caplog.text


def test_if_the_last_one_failed_that_is_raised(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage())
    with pytest.raises(StorageError):
        trained(tmp_path, storage, failing=STEPS - 1)


@pytest.mark.usefixtures("signals")
def test_who_was_given_notice_asks_to_be_started_again_whether_or_not_its_last_save_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FaultyStorage(MemoryStorage())
    with pytest.raises(Preempted) as ended:
        trained(tmp_path, storage, failing=7, noticed=7)
    assert ended.value.code == REQUEUE
    assert "step 8 is not saved, and the last commit stays" in caplog.text
    for name in SIGNALS:  # of which a launcher may send more, and none is to change the status
        os.kill(os.getpid(), getattr(signal, name))
    with CheckpointManager(storage) as manager:
        assert manager.list_checkpoints() == [0, 3, 6]
