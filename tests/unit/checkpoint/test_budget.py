"""How much memory snapshots may take by default."""

from pathlib import Path

import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, budget
from strata.storage import MemoryStorage


def test_a_share_of_the_machine_for_each_rank() -> None:
    alone = budget.default_budget({})
    assert budget.default_budget({"LOCAL_WORLD_SIZE": "4"}).bytes == pytest.approx(alone.bytes / 4, abs=4)
    assert "over 4 ranks" in budget.default_budget({"LOCAL_WORLD_SIZE": "4"}).reason
    assert budget.default_budget({"SLURM_NTASKS_PER_NODE": "8(x2)"}).bytes == pytest.approx(alone.bytes / 8, abs=8)
    assert budget.default_budget({"LOCAL_WORLD_SIZE": "many"}) == alone


GIB = 1 << 30


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups of a machine of 64 GiB, in none of which this process is."""
    monkeypatch.setattr(budget, "MOUNTED", tmp_path / "cgroup")
    monkeypatch.setattr(budget, "GROUPS", tmp_path / "own")
    monkeypatch.setattr(budget, "machine_bytes", lambda: 64 * GIB)
    return tmp_path / "cgroup"


def limit(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n", encoding="utf-8")


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_has_less(mounted: Path, name: str) -> None:
    limit(mounted / name, str(GIB))
    found = budget.default_budget({})
    assert found.bytes == int(0.4 * GIB)
    assert found.reason == "40% of the container's 1.0 GiB"
    limit(mounted / name, "max")
    assert "machine" in budget.default_budget({}).reason
    limit(mounted / name, "9223372036854771712")  # no limit, as the first version says it
    assert "machine" in budget.default_budget({}).reason


@pytest.mark.parametrize(
    ("own", "folder", "name"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user", "system.slice/slurmstepd.scope", "memory.max"),
        ("5:cpu:/\n4:memory,hugetlb:/slurm/uid_0/job_7/step_0\n0::/", "memory/slurm", "memory.limit_in_bytes"),
        ("0::/user.slice/run:7.scope", "user.slice", "memory.max"),
    ],
)
def test_a_job_has_what_its_group_has_or_one_above(mounted: Path, own: str, folder: str, name: str) -> None:
    """The least of them counts."""
    limit(mounted.parent / "own", own)
    limit(mounted / folder / name, str(8 * GIB))
    assert budget.default_budget({}).bytes == int(0.4 * 8 * GIB)
    group = next(line for line in own.splitlines() if "/s" in line or "/u" in line).split(":", 2)[2]
    deepest = mounted / ("memory" if "memory/" in folder else "") / group.lstrip("/")
    limit(deepest / name, str(2 * GIB))
    assert budget.default_budget({}).bytes == int(0.4 * 2 * GIB)
    limit(deepest / name, str(32 * GIB))
    assert budget.default_budget({}).bytes == int(0.4 * 8 * GIB)


@pytest.mark.parametrize("own", ["0::/../beside", "4:memory:/docker/abc\n0::/"])
def test_a_group_that_cannot_be_seen_from_here_limits_nothing(mounted: Path, own: str) -> None:
    limit(mounted.parent / "own", own)
    limit(mounted.parent / "beside/memory.max", str(GIB))
    assert "machine" in budget.default_budget({}).reason


def test_a_budget_that_nobody_chose_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "strata.checkpoint"), CheckpointManager(MemoryStorage()) as manager:
        (told,) = [message for message in caplog.messages if message.startswith("snapshots may take")]
        assert manager.budget.reason in told
    caplog.clear()
    with (
        caplog.at_level("INFO", "strata.checkpoint"),
        CheckpointManager(MemoryStorage(), config=CheckpointManagerConfig(memory_bytes=64 << 20)),
    ):
        assert not caplog.messages


def test_there_is_a_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "machine_bytes", lambda: 1 << 20)
    assert budget.default_budget({}).bytes == budget.LEAST_BYTES
