"""Power fails while a coordinator writes its journal: what was acknowledged is there when it starts again."""

from pathlib import Path

import pytest

from strata.coordinator import backups, journal
from strata.coordinator.journal import Journal
from strata.coordinator.replay import replayed
from strata.core.records import TermStarted
from tests.integration.disks import Disk
from tests.integration.storage.crashing import dies, kill

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

BATCHES = 30


@pytest.mark.parametrize("at", [0, 1, 7, BATCHES, "before the close", "after the close"])
def test_power_fails_behind_what_was_acknowledged(disk: Disk, monkeypatch: pytest.MonkeyPatch, at: int | str) -> None:
    """Twice on one journal, whose log is begun anew every few batches."""
    monkeypatch.setattr(journal, "LOG_FRAMES", 8)
    state, records = disk.path / "state", 0

    def body() -> None:
        opened = Journal(state)
        for number in range(BATCHES):
            if number == at:
                break
            opened.append(records + number, 1, [TermStarted(records + number)])
        if at == "after the close":
            opened.close()
        disk.cut_power()
        kill()

    for _ in range(2):
        assert dies(body)
        disk.power_up()
        records += min(at, BATCHES) if isinstance(at, int) else BATCHES
        opened = Journal(state)
        assert replayed(opened).machine.index == records
        opened.close()


def test_power_fails_behind_a_restore(disk: Disk, tmp_path: Path) -> None:
    opened = Journal(tmp_path / "former")
    opened.append(0, 1, [TermStarted(1)])
    opened.close()
    backups.backup(tmp_path / "former", tmp_path / "backup")

    def body() -> None:
        backups.restore(tmp_path / "backup", disk.path / "state")
        disk.cut_power()
        kill()

    assert dies(body)
    disk.power_up()
    opened = Journal(disk.path / "state")
    assert replayed(opened).machine.index == 1 + len(["TermStarted"])
    opened.close()
