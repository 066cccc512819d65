"""FaultyStorage: the faults it promises, and the same ones every time."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from strata.errors import InvalidInput, StorageUnavailable
from strata.storage import MemoryStorage, StorageBackend
from strata.testing import FaultyStorage, StorageTests
from strata.testing.faulty import Faults
from tests.until import until_async


class TestWithoutFaults(StorageTests):
    outlives_the_process = False
    writes_at_once = True

    @pytest.fixture
    def storage(self) -> StorageBackend:
        return FaultyStorage(MemoryStorage(), faults=Faults(latency_seconds=0.0005))


def outcomes(seed: int, faults: Faults, order: range) -> Counter[tuple[str, str]]:
    async def use() -> Counter[tuple[str, str]]:
        storage = FaultyStorage(MemoryStorage(), seed, faults)
        for number in order:
            with suppress(StorageUnavailable):
                await storage.write(f"key-{number}", b"x")
        return Counter((call.path, call.outcome) for call in storage.calls)

    return asyncio.run(use())


def test_the_same_seed_gives_the_same_faults_in_any_order() -> None:
    faults = Faults(before=0.2, after=0.2, partial=0.1)
    seen = outcomes(7, faults, range(200))
    assert seen == outcomes(7, faults, range(199, -1, -1))
    assert seen != outcomes(8, faults, range(200))
    kinds = Counter(outcome for _, outcome in seen)
    assert 20 < kinds["before"] < 60
    assert 20 < kinds["after"] < 60
    assert 80 < kinds["done"] < 130


def test_before_did_nothing_and_after_did_it() -> None:
    async def use() -> None:
        inner = MemoryStorage()
        storage = FaultyStorage(inner)
        storage.fail("write", 1, "before")
        storage.fail("write", 2, "after")
        for key in ("a", "b"):
            with pytest.raises(StorageUnavailable, match="on purpose"):
                await storage.write(key, b"x")
        await storage.write("c", b"x")
        assert [entry.path async for entry in inner.list_all()] == ["b", "c"]

    asyncio.run(use())


def test_partial_does_half() -> None:
    async def use() -> None:
        inner = MemoryStorage()
        storage = FaultyStorage(inner)
        for number in range(4):
            await storage.write(f"{number}", b"x")
        storage.fail("delete_many", 1, "partial")
        with pytest.raises(StorageUnavailable):
            await storage.delete_many(["0", "1", "2", "3"])
        assert [entry.path async for entry in inner.list_all()] == ["2", "3"]
        storage.fail("writer.write", 1, "partial")
        with pytest.raises(StorageUnavailable):
            async with storage.open_writer("stream") as writer:
                await writer.write(b"0123456789")
        assert not await inner.exists("stream")

    asyncio.run(use())


def test_a_call_that_gets_stuck_in_the_moment_of_the_release_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`release` is called by another thread, and may come between any two steps of the call."""
    storage = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0, only=frozenset({"write"})))

    class Event(asyncio.Event):
        def __init__(self) -> None:
            super().__init__()
            storage.release()

    monkeypatch.setattr("strata.testing.faulty.asyncio.Event", Event)
    asyncio.run(asyncio.wait_for(storage.write("a", b"x"), 10))
    assert storage.stuck == 0


def test_a_stuck_call_waits_for_its_release() -> None:
    async def use() -> None:
        storage = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0, only=frozenset({"write"})))
        stuck = asyncio.create_task(storage.write("a", b"x"))
        await until_async(lambda: storage.stuck)
        assert not stuck.done()
        assert not await storage.exists("a")
        storage.release()
        await stuck
        assert await storage.read("a") == b"x"

    asyncio.run(use())


def test_a_fault_of_what_no_storage_does_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no operation 'open_writer'"):
        Faults(before=1.0, only=frozenset({"open_writer"}))
    with pytest.raises(InvalidInput, match="no operation 'put'"):
        FaultyStorage(MemoryStorage()).fail("put", 1)


@pytest.mark.parametrize("shares", [{"before": -0.1}, {"before": 0.6, "after": 0.6}])
def test_shares_that_make_no_sense_are_refused(shares: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="shares of faults"):
        Faults(**shares)
