"""What a process does to a disk, step by step, so that it can be killed at each."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

STEPS = {"makedirs", "open", "ftruncate", "pread", "pwrite", "replace", "unlink", "scandir", "utime", "fstat", "stat"}


class AtStep:
    """`os`, in which the so-maniest step meets something."""

    def __init__(self, step: int, meets: Callable[[], None]) -> None:
        self._left, self._meets = step, meets

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return (lambda *given, **named: self._call(name, real, *given, **named)) if name in STEPS else real

    def _call(self, name: str, real: Any, *given: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            if name == "pwrite":
                file, data, place = given
                real(file, data[: len(data) // 2], place)
            self._meets()
        return real(*given, **named)

    @property
    def is_past(self) -> bool:
        return self._left > 0


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None]) -> int:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(120)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the child neither ended nor died")
    code = child.exitcode
    child.close()
    return code
