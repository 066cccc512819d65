"""Where scenes are played, by processes that die."""

import ctypes
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.checkpoint.scenes import Kind, Scene
from tests.integration.storage.crashing import CHANGES, at_call, calls_of, dies, kill

TRIED = 5
"""Deaths of each scene, drawn anew each time; `make test-long` dies all of them."""

some_and_all = pytest.mark.parametrize("how_many", ["some", pytest.param("all", marks=pytest.mark.long)])


class Stage:
    """A folder in which a scene is played again and again; `root` may be on another disk."""

    def __init__(self, folder: Path, scene: Scene, kind: Kind, root: Path | None = None) -> None:
        self.root, self._before, self._log = root or folder / "root", folder / "before", folder / "calls"
        self._scene, self._kind = scene, kind
        self._before.mkdir()
        scene.before(self._before, kind)

    def set_up(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self._before, self.root)
        sync_all_of(self.root)

    def calls(self) -> list[str]:
        """Those that change the disk, in order."""
        self.set_up()
        return calls_of(lambda: self._scene.act(self.root, self._kind), self._log)

    def play(self, at: int, die: Callable[[], None] = kill) -> bool:
        """Whether the process died, just before this call."""
        self.set_up()

        def body() -> None:
            at_call(at, die, calls=CHANGES)
            self._scene.act(self.root, self._kind)

        return dies(body)


def chosen(count: int, how_many: str, least: int = 1) -> list[int]:
    """From `least` to this number: all of them, or some, from a seed that is printed; the last one always."""
    every = list(range(least, count + 1))
    if how_many == "all" or len(every) <= TRIED:
        return every
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    return sorted({*random.Random(seed).sample(every, TRIED), count})


def sync_all_of(folder: Path) -> None:
    """The disk that it is on: what is there before power fails is there afterwards."""
    fd = os.open(folder, os.O_RDONLY)
    assert ctypes.CDLL(None).syncfs(fd) == 0
    os.close(fd)
