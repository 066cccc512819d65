"""The one loop that waits for another thread, process or task: until what it asks is true."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(said: Callable[[], T], seconds: float = 60.0, every: float = 0.01) -> T:
    """Returns the first answer that is true; raises AssertionError, with the last one, after so many seconds."""
    ends = time.monotonic() + seconds
    while not (last := said()):
        assert time.monotonic() < ends, f"after {seconds:g} s it is still {last!r}"
        time.sleep(every)
    return last


async def until_async(said: Callable[[], T], seconds: float = 60.0, every: float = 0.001) -> T:
    """Does the same while the loop runs on."""
    ends = time.monotonic() + seconds
    while not (last := said()):
        assert time.monotonic() < ends, f"after {seconds:g} s it is still {last!r}"
        await asyncio.sleep(every)
    return last
