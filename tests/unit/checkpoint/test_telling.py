"""Every save is told: committed, failed, skipped or replaced, with what it cost."""

import logging
import subprocess
import sys

import pytest
import torch
from prometheus_client import REGISTRY

from strata import CheckpointManager, CheckpointManagerConfig, MemoryStorage, SaveEvent, StorageUnavailable
from strata.testing.faulty import Faults, FaultyStorage

STATE = {"frozen": torch.randn(1000), "moving": torch.zeros(10)}


def told_of(manager: CheckpointManager) -> list[SaveEvent]:
    events: list[SaveEvent] = []
    manager.listen(events.append)
    return events


def number(name: str, job: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"job": job, **labels}) or 0.0


def test_a_committed_save_tells_what_it_cost() -> None:
    with CheckpointManager(MemoryStorage(), job_id="told", incremental=True) as manager:
        events = told_of(manager)
        manager.save(STATE, step=1)
        report = manager.save(STATE | {"moving": torch.ones(10)}, step=2)
    first, second = events
    assert (first.outcome, first.job_id, first.step, first.written_bytes) == ("committed", "told", 1, 4040)
    assert (second.written_bytes, second.referenced_bytes, second.state_bytes) == (40, 4000, 4040)
    assert second.stall_seconds == report.stall_seconds > 0
    assert second.durable_seconds == report.durable_seconds > 0
    assert second.mb_per_second > 0
    assert number("strata_checkpoint_saves_total", "told", outcome="committed") == 2
    assert number("strata_checkpoint_written_bytes_total", "told") == 4080
    assert number("strata_checkpoint_referenced_bytes_total", "told") == 4000
    assert number("strata_checkpoint_stall_seconds_count", "told") == 2
    assert number("strata_checkpoint_step", "told") == 2


def test_a_failed_save_is_told_with_its_reason() -> None:
    faulty = FaultyStorage(MemoryStorage(), faults=Faults(before=1.0, only=frozenset({"write"})))
    manager = CheckpointManager(faulty, job_id="failing")
    events = told_of(manager)
    with pytest.raises(StorageUnavailable):
        manager.save(STATE, step=1)
    assert [(event.outcome, event.step) for event in events] == [("failed", 1)]
    assert events[0].reason
    assert number("strata_checkpoint_saves_total", "failing", outcome="failed") == 1
    manager.close()


@pytest.mark.parametrize("busy", ["skip", "replace"])
def test_what_is_skipped_or_replaced_is_told(busy: str) -> None:
    stuck = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0, only=frozenset({"write"})))
    manager = CheckpointManager(stuck, config=CheckpointManagerConfig(when_busy=busy))
    events = told_of(manager)
    manager.save_async(STATE, step=1)
    manager.save_async(STATE, step=2)
    stuck.release()
    manager.wait()
    expected = {"skip": [("skipped", 2), ("committed", 1)], "replace": [("replaced", 1), ("committed", 2)]}[busy]
    assert [(event.outcome, event.step) for event in events] == expected
    assert "step" in events[0].reason
    manager.close()


def test_a_listener_that_fails_fails_no_save(caplog: pytest.LogCaptureFixture) -> None:
    def bad(event: SaveEvent) -> None:
        raise RuntimeError("no")

    with caplog.at_level(logging.ERROR), CheckpointManager(MemoryStorage()) as manager:
        manager.listen(bad)
        events = told_of(manager)
        manager.save(STATE, step=1)
    assert len(events) == 1
    assert "a listener failed" in caplog.text


def test_uploads_from_a_local_tier_are_counted() -> None:
    far = FaultyStorage(MemoryStorage(name="far"))
    with CheckpointManager(far, local=MemoryStorage(name="near"), job_id="uploading") as manager:
        manager.save(STATE, step=1)
        manager.wait()
        far.faults = Faults(before=1.0)
        manager.save(STATE, step=2)
        with pytest.raises(StorageUnavailable):
            manager.wait()
        assert number("strata_checkpoint_behind", "uploading") == 1
        assert number("strata_checkpoint_uploads_total", "uploading", outcome="failed") >= 1
        far.faults = Faults()
    assert number("strata_checkpoint_behind", "uploading") == 0
    assert number("strata_checkpoint_uploads_total", "uploading", outcome="uploaded") == 2
    assert number("strata_checkpoint_uploaded_bytes_total", "uploading") == 2 * (4096 + 4040)


TAKEN = """
from prometheus_client import Counter
from strata.checkpoint import CheckpointManager
from strata.storage import MemoryStorage

Counter("strata_checkpoint_saves", "Of somebody else.")
with CheckpointManager(MemoryStorage()) as manager:
    manager.save({"a": 1}, step=1)
    print(manager.latest_step())
"""


def test_metrics_that_cannot_be_counted_hold_up_no_save() -> None:
    done = subprocess.run([sys.executable, "-c", TAKEN], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "1"
    assert "Duplicated timeseries" in done.stderr
