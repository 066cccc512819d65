"""Who waits for other ranks says so, and for whom."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, waiting
from strata.errors import RankFailed, StorageUnavailable
from strata.storage import MemoryStorage
from tests.unit.checkpoint.crews import Crew
from tests.until import until, until_async

CONFIG = CheckpointManagerConfig(ranks_seconds=30)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([1], "rank 1"),
        ({3, 1}, "ranks 1, 3"),
        (range(1, 9), "ranks 1, 2, 3, 4, 5, 6, 7, 8"),
        (range(1, 12), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"),
    ],
)
def test_ranks_are_named(ranks: Any, name: str) -> None:
    assert waiting.named(ranks) == name


def test_a_wait_is_told_rarer_and_rarer() -> None:
    clock = 0.0
    wait, found = waiting.Wait(lambda: clock), list[float]()
    while clock <= 900:
        if wait.is_due():
            found.append(clock)
        clock += 1
    assert found == [30, 60, 120, 240, 480]


def waits(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    return all(any(re.search(each, record.getMessage()) for record in list(caplog.records)) for each in words)


def test_who_is_waited_for_is_told_on_all_sides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.05)

    with caplog.at_level(logging.WARNING), Crew(MemoryStorage(), 4, config=CONFIG) as crew:

        def act(rank: int, manager: CheckpointManager) -> None:
            if rank == 2:  # nobody has come yet
                manager.save({"w": np.ones(3)}, 10)
            if rank == 0:
                names = r"step 10 is not saved yet: waiting for rank 0 for \d+ s, to say which arrays it has"
                until(lambda: waits(caplog, names))
                manager.save({"w": np.ones(3)}, 10)
            if rank % 2:  # nor the other half
                words = r"for ranks 1, 3 for \d+ s, until all parts are there", r"for rank 0 for \d+ s, to commit it"
                until(lambda: waits(caplog, *words))
                manager.save({"w": np.ones(3)}, 10)

        crew.each(act)
        crew.managers[0].wait()
        before = len(caplog.records)
        time.sleep(0.3)
        assert len(caplog.records) == before, "what is over is not waited for"


def test_that_it_cannot_be_told_for_whom_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.01)

    async def nobody() -> list[int]:
        raise StorageUnavailable("the storage is away", storage="memory:")

    words = r"step 3 is not saved yet: waiting for other ranks for \d+ s, to come"

    async def works() -> int:
        await until_async(lambda: waits(caplog, words))
        return 7

    who: Callable[[], Awaitable[list[int]]] = nobody
    assert asyncio.run(waiting.told(works(), 3, who, "to come")) == 7


def test_what_to_look_at_is_said_in_the_right_order() -> None:
    crew = Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=1))
    crew.save([{"w": np.ones(3)}] * 2, 5)
    crew.managers[1].close()
    with pytest.raises(RankFailed) as caught:
        crew.managers[0].save({"w": np.ones(3)}, 10)
    words = str(caught.value)
    assert "the parts of rank 1 are not there after 1 s: did rank 1 call save(step=10)?" in words
    assert words.index("is 5.") < words.index("the same storage for all")


def test_a_clock_that_is_a_rounding_short_ends_the_pause_all_the_same() -> None:
    clock = 0.0
    wait = waiting.Wait(lambda: clock)

    async def pause() -> None:
        nonlocal clock
        clock = wait.next_seconds - 1e-9
        await asyncio.wait_for(wait.until_due(), 5)

    for seconds in (60, 120, 240):
        asyncio.run(pause())
        assert wait.next_seconds == seconds
