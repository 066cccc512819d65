"""Children that die at a chosen call to the system, in the middle of changing a local storage."""

import fcntl
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from strata.storage import BlockingStorage, LocalStorage

CALLS = ("open", "close", "pwrite", "fsync", "ftruncate", "replace", "link", "unlink", "mkdir", "rmdir", "scandir")
CHILD_SECONDS = 60.0

Action = Callable[[BlockingStorage], None]


def run_child(body: Callable[[], None]) -> int:
    """Fork, run it, and return the exit code; negative for a signal. A child that hangs is killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    timer = threading.Timer(CHILD_SECONDS, os.kill, (child, signal.SIGALRM))
    timer.start()
    try:
        _, status = os.waitpid(child, 0)
    finally:
        timer.cancel()
    return os.waitstatus_to_exitcode(status)


def act_and_die(root: Path, act: Action, *, at: int, after: bool, die: Callable[[], None]) -> bool:
    """Whether the child died at the so-maniest call, before it or after it; if not, it ended by itself."""

    def body() -> None:
        storage = BlockingStorage(LocalStorage(root))
        storage.exists("warm up the threads")
        _die_at(at, after, die)
        act(storage)

    code = run_child(body)
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return code == -signal.SIGKILL


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _die_at(at: int, after: bool, die: Callable[[], None]) -> None:
    """From here on calls to the system are counted, in all threads of this process."""
    counted = iter(range(1, 1 << 30))

    def wrap(call: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: object, **kwargs: object) -> object:
            mine = next(counted)
            if mine == at and not after:
                die()
            try:
                return call(*args, **kwargs)
            finally:
                if mine == at and after:
                    die()

        return counting

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))
    fcntl.flock = wrap(fcntl.flock)  # type: ignore[assignment]
