"""Marks of readers go when their reader does, whatever ends it."""

import asyncio
from typing import Any

import pytest

from strata.checkpoint import readers
from strata.checkpoint.readers import READERS, claimed
from strata.checkpoint.store import Store
from strata.storage import MemoryStorage


class SlowToAnswer(MemoryStorage):
    """What is written is there at once, and that is said much later."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    async def write(self, path: str, data: Any, **how: Any) -> None:
        await super().write(path, data, **how)
        self.written.set()
        await asyncio.sleep(60)


async def marks(storage: MemoryStorage) -> list[str]:
    return [entry.path async for entry in storage.list_all(f"default/checkpoints/{READERS}")]


def test_one_that_is_told_to_end_while_it_makes_its_mark_leaves_none() -> None:
    async def scene() -> None:
        storage = SlowToAnswer()

        async def read() -> None:
            async with claimed(Store(storage, "default"), ["step_1"]):
                raise AssertionError("it never comes to read")

        reading = asyncio.ensure_future(read())
        await storage.written.wait()
        assert len(await marks(storage)) == 1
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await marks(storage) == []

    asyncio.run(scene())


def test_there_is_a_mark_for_as_long_as_it_reads() -> None:
    async def scene() -> None:
        storage = MemoryStorage()
        async with claimed(Store(storage, "default"), ["step_1"]):
            assert len(await marks(storage)) == 1
        assert await marks(storage) == []

    asyncio.run(scene())


class SlowToRemove(MemoryStorage):
    """What is removed is so after a while, unless whoever wants it is told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()

    async def delete(self, path: str) -> None:
        self.is_asked.set()
        await asyncio.sleep(0.1)
        await super().delete(path)


def test_one_that_is_told_to_end_while_it_removes_its_mark_leaves_none() -> None:
    async def scene() -> None:
        storage = SlowToRemove()

        async def read() -> None:
            async with claimed(Store(storage, "default"), ["step_1"]):
                pass

        reading = asyncio.ensure_future(read())
        await storage.is_asked.wait()
        reading.cancel()
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await marks(storage) == []

    asyncio.run(scene())


class SlowToPutAgain(MemoryStorage):
    """The second time, what is written comes to be there also where whoever wrote it has been told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.again, self.is_over = asyncio.Event(), asyncio.Event()

    async def write(self, path: str, data: Any, **how: Any) -> None:
        self.writes += 1
        try:
            if self.writes > 1:
                self.again.set()
                await asyncio.sleep(60)
        finally:
            if self.writes > 1:
                await asyncio.sleep(0.1)
            await super().write(path, data, **how)
            if self.writes > 1:
                self.is_over.set()


def test_a_mark_that_is_being_renewed_is_not_put_again_after_it_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "RENEW_SECONDS", 0.01)

    async def scene() -> None:
        storage = SlowToPutAgain()
        async with claimed(Store(storage, "default"), ["step_1"]):
            await storage.again.wait()
        await asyncio.wait_for(storage.is_over.wait(), 20)
        assert await marks(storage) == []

    asyncio.run(scene())
