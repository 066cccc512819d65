"""Another process of this machine, watched from outside: whether it lives, and whether it could do anything now.

A process that is stopped or traced lives, but can do nothing; one that waits for a disk can. Linux tells of a death at
once; elsewhere it is looked for.
"""

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 0.25
"""Between two looks at a process whose death nobody tells of."""

PROC = Path("/proc/self/stat")
_DEAD = ("", "Z", "X")
_HALTED = ("T", "t")


def started_at(pid: int) -> int | None:
    """In the machine's own count, which tells a process from a later one of the same number; None: it is not told."""
    return _stat(pid)[1] if PROC.exists() else None


class Watched:
    """A process by its number, and when it started, if that is known. `close` ends the watch."""

    def __init__(self, pid: int, started: int | None) -> None:
        self.pid, self._started = pid, started
        self._fd: int | None = None
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # an older kernel, or it is gone already
                self._fd = os.pidfd_open(pid)

    @property
    def is_dead(self) -> bool:
        return self._state() in _DEAD

    @property
    def is_halted(self) -> bool:
        """Stopped, or held by a debugger."""
        return self._state() in _HALTED

    async def died(self) -> None:
        """Waits for that."""
        if self._fd is None:
            while not self.is_dead:
                await asyncio.sleep(LOOK_SECONDS)
        elif not self.is_dead:  # it may have been another that has its number now
            loop, over = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self._fd, over.set)
            try:
                await over.wait()
            finally:
                loop.remove_reader(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _state(self) -> str:
        """One letter, as `ps` has it; nothing for a process that is no more."""
        state, started = _stat(self.pid)
        return state if self._started in (None, started) else ""


def _stat(pid: int) -> tuple[str, int | None]:
    if not PROC.exists():
        return _ps(pid), None
    try:
        # The name in parentheses may hold anything, parentheses too.
        told = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", None
    return told[0], int(told[19])


def _ps(pid: int) -> str:
    found = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1]
