"""The simulated coordinator: a restart goes on from the snapshot and from what was journaled after it."""

import pytest

from strata.testing import simulate
from strata.testing.simulation import host


@pytest.mark.parametrize("seed", range(6))
def test_a_restart_reads_the_snapshot_and_then_only_what_came_after_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "SNAPSHOT_EVERY", 20)
    result = simulate(seed, workers=12, faults=14)
    assert result.failure is None, result.failure.message
