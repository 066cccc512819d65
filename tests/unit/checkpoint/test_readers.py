"""Marks of readers go when their reader does, whatever ends it."""

import asyncio
from typing import Any

import pytest

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
