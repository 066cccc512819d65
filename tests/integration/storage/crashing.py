"""Children that die at a chosen call to the system, in the middle of changing a local storage."""

import faulthandler
import fcntl
import gc
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from strata.storage import BlockingStorage, LocalStorage

CHANGES = ("create", "pwrite", "fsync", "ftruncate", "utime", "replace", "link", "unlink", "mkdir", "rmdir")
"""Calls that change what is on the disk, or what stays there when power fails: between two of them nothing changes."""
CALLS = ("open", *CHANGES[1:], "close", "scandir")
CHILD_SECONDS = 60.0

Action = Callable[[BlockingStorage], None]
Call: TypeAlias = Callable[..., Any]


def run_child(body: Callable[[], None]) -> int:
    """Fork, run it, and return the exit code; negative for a signal. A child that hangs is killed."""
    child = fork(body)
    timer = threading.Timer(CHILD_SECONDS, os.kill, (child, signal.SIGALRM))
    timer.start()
    try:
        _, status = os.waitpid(child, 0)
    finally:
        timer.cancel()
    return os.waitstatus_to_exitcode(status)


def fork(body: Callable[[], None]) -> int:
    """Start a child that runs `body` and ends, with 1 if it failed. A crash of its interpreter is printed.

    The child leaves its parent's garbage alone: that may belong to threads of native code, which no child has.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            gc.freeze()
            faulthandler.enable(file=2)
            body()
            code = 0
        except BaseException:  # noqa: BLE001  the parent sees the code
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def act_and_die(root: Path, act: Action, *, at: int, after: bool, die: Callable[[], None]) -> bool:
    """Whether the child died at the so-maniest call, before it or after it; if not, it ended by itself."""

    def body() -> None:
        storage = BlockingStorage(LocalStorage(root))
        storage.exists("warm up the threads")
        fcntl.flock = at_call(at, die, after=after)("flock", fcntl.flock)
        act(storage)

    return dies(body)


def dies(body: Callable[[], None]) -> bool:
    """Whether it was killed; if not, it must have ended well."""
    code = run_child(body)
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return code == -signal.SIGKILL


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def at_call(
    at: int, do: Callable[[], None], *, after: bool = False, calls: Sequence[str] = CALLS
) -> Callable[[str, Call], Call]:
    """From here on calls to the system are counted, in all threads of this process, and this is done at one of them.

    Gives what makes another function count with them.
    """
    counted = iter(range(1, 1 << 30))

    def hook(name: str, call: Call) -> Call:
        def counting(*args: Any, **kwargs: Any) -> Any:
            mine = next(counted)
            if mine == at and not after:
                do()
            try:
                return call(*args, **kwargs)
            finally:
                if mine == at and after:
                    do()

        return counting

    _hook(calls, hook)
    return hook


def calls_of(body: Callable[[], None], log: Path, calls: Sequence[str] = CHANGES) -> list[str]:
    """Run it in a child; the calls that it makes, in order."""

    def counted() -> None:
        made: list[str] = []

        def hook(name: str, call: Call) -> Call:
            def noting(*args: Any, **kwargs: Any) -> Any:
                made.append(name)
                return call(*args, **kwargs)

            return noting

        _hook(calls, hook)
        body()
        log.write_text(" ".join(made), encoding="utf-8")

    assert run_child(counted) == 0
    return log.read_text("utf-8").split()


def _hook(calls: Sequence[str], hook: Callable[[str, Call], Call]) -> None:
    for name in calls:
        if name == "create":
            os.open = _only_creating(hook(name, os.open), os.open)
        else:
            setattr(os, name, hook(name, getattr(os, name)))


def _only_creating(hooked: Call, plain: Call) -> Call:
    def opening(path: object, flags: int, *rest: Any, **more: Any) -> Any:
        return (hooked if flags & os.O_CREAT else plain)(path, flags, *rest, **more)

    return opening
