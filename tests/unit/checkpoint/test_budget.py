"""How much memory snapshots may take by default."""

from pathlib import Path

import pytest

from strata.checkpoint import budget


def test_a_share_of_the_machine_for_each_rank() -> None:
    alone = budget.default_budget({})
    assert budget.default_budget({"LOCAL_WORLD_SIZE": "4"}).bytes == pytest.approx(alone.bytes / 4, abs=4)
    assert "over 4 ranks" in budget.default_budget({"LOCAL_WORLD_SIZE": "4"}).reason
    assert budget.default_budget({"SLURM_NTASKS_PER_NODE": "8(x2)"}).bytes == pytest.approx(alone.bytes / 8, abs=8)
    assert budget.default_budget({"LOCAL_WORLD_SIZE": "many"}) == alone


def test_a_container_has_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{1 << 30}\n")
    monkeypatch.setattr(budget, "_LIMITS", (str(tmp_path / "none"), str(limit)))
    found = budget.default_budget({})
    assert found.bytes == int(0.4 * (1 << 30))
    assert found.reason == "40% of the container's 1.0 GiB"
    limit.write_text("max\n")
    assert "machine" in budget.default_budget({}).reason


def test_there_is_a_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_machine_bytes", lambda: 1 << 20)
    assert budget.default_budget({}).bytes == budget.LEAST_BYTES
