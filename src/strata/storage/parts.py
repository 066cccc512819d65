"""The parts of a large upload: lent to the client without a copy, and known to be back when it let go of them."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.errors import StorageError

Block: TypeAlias = NDArray[np.uint8]

MAX_PARTS = 10_000
"""What S3 allows; the others allow more."""


def part_bytes_for(size: int | None, part_bytes: int) -> int:
    """Parts large enough that there are not too many of them."""
    if size is None or size <= part_bytes * MAX_PARTS:
        return part_bytes
    least = -(-size // MAX_PARTS)
    return -(-least // 4096) * 4096


class Loans:
    """Blocks in the client's hands. It reads them from its own threads and drops them when they are uploaded."""

    def __init__(self, returned: Callable[[Block], None]) -> None:
        self._returned = returned
        self._out: dict[int, weakref.ref[Block]] = {}
        self._lent = 0

    def lend(self, block: Block) -> Block:
        """A view of the block; `returned` is called with the block, from any thread, when the view is gone."""
        view = block[:]
        self._lent += 1
        number = self._lent

        def back(_: "weakref.ref[Block]") -> None:
            del self._out[number]
            self._returned(block)

        self._out[number] = weakref.ref(view, back)
        return view


class Feed:
    """What an upload pulls its parts from. It can be told to fail, which makes the client abort the upload."""

    def __init__(self, depth: int) -> None:
        self._ready: asyncio.Queue[Block | None] = asyncio.Queue(depth)
        self._failed: BaseException | None = None

    async def put(self, part: Block) -> None:
        await self._ready.put(part)

    async def end(self) -> None:
        await self._ready.put(None)

    def fail(self, error: BaseException) -> None:
        self._failed = error
        while not self._ready.empty():
            self._ready.get_nowait()
        self._ready.put_nowait(None)

    async def parts(self) -> AsyncGenerator[Block, None]:
        while (part := await self._ready.get()) is not None:
            yield part
            del part  # the client's reference must be the last one
        if self._failed is not None:
            raise self._failed


@dataclass(frozen=True, slots=True)
class Upload:
    """One under way: where it goes, what it is fed from, when it ends, and the mark by which its object is known."""

    path: str
    key: str
    feed: Feed
    ending: "asyncio.Future[Any]"
    writer: str


class Aborted(StorageError):
    """Raised into an upload that is not wanted any more."""
