"""Cycles are found, of new objects and of old ones, and no look is long. In processes of their own: it is the whole
process whose garbage is meant."""

import subprocess
import sys

BEGIN = """
import asyncio, gc, weakref
from strata.coordinator import garbage
from strata.coordinator.garbage import Garbage
garbage.MANY, garbage.PAUSE_SECONDS = 20_000, 0.2

class Knot:
    def __init__(self):
        self.itself = self

async def main():
    looks = []
    gc.callbacks.append(lambda phase, info: looks.append(len(gc.get_objects())) if phase == "start" else None)
    with Garbage(asyncio.get_running_loop()) as kept:
        looks.clear()
        await act(looks)
    assert gc.get_freeze_count() == 0

async def act(looks):
"""
END = """
asyncio.run(main())
"""


def run(lines: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + lines + END], check=True)


def test_only_what_is_new_is_looked_at() -> None:
    run("""
    held = [[number] for number in range(50_000)]
    assert len(looks) >= 40
    assert max(looks) < 5 * garbage.NEW, looks
    """)


def test_cycles_of_new_objects_go_soon() -> None:
    run("""
    gone = weakref.ref(Knot())
    held = [[number] for number in range(10 * garbage.NEW)]
    assert gone() is None
    """)


def test_cycles_that_have_lived_go_once_much_was_put_aside_and_time_has_passed() -> None:
    run("""
    knot = Knot()
    gone = weakref.ref(knot)
    held = [[number] for number in range(10 * garbage.NEW)]
    del knot
    await asyncio.sleep(3 * garbage.PAUSE_SECONDS)
    assert gone() is not None, "there are few more than before"
    held += [[number] for number in range(3 * garbage.MANY)]
    assert gone() is not None, "not so soon"
    await asyncio.sleep(3 * garbage.PAUSE_SECONDS)
    assert gone() is None
    """)
