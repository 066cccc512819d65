"""Memory that is allocated once, and pinned where that can be."""

import pytest

from strata.checkpoint.arena import GRAIN_BYTES, Arena
from strata.checkpoint.frameworks import gpu


def test_what_cannot_be_pinned_is_used_all_the_same_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def pin(block: object) -> str:
        tried.append(1)
        return "out of memory"

    monkeypatch.setattr(gpu, "pin", pin)
    arena = Arena(4 * GRAIN_BYTES)
    for _ in range(3):
        assert len(arena.take(GRAIN_BYTES, pinned=True)) == GRAIN_BYTES
    assert (len(tried), len(caplog.messages)) == (1, 1)
    assert "could not be pinned (out of memory)" in caplog.messages[0]
    arena.take(2 * GRAIN_BYTES, pinned=True)  # other memory, so another try
    assert len(tried) == 2
