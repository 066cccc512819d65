"""Who has claimed something on a disk that processes of one machine share, and whether that process is still there.

A number alone does not tell: in a container the process that is started anew often has that of the one that was killed.
So the name of a process is its number and when it began. Where that cannot be had, it is a token of its own, by which a
process knows itself; any other of that number is taken for the one.
"""

import os
import secrets
from pathlib import Path

_TOKEN = secrets.token_hex(8)
_BEGAN = 19
"""Its place behind the name of the program, in what the system says of a process."""


def own_name() -> str:
    """Of this process: no other that was here before, or will be, has the same."""
    return f"{os.getpid()} {began_at(os.getpid()) or _TOKEN}"


def is_alive(name: str) -> bool:
    """On this machine, as far as it can be told. What is no name is nobody's."""
    number, _, mark = name.partition(" ")
    if not (number.isascii() and number.isdecimal()):
        return False
    process = int(number)
    if process == os.getpid():
        return name == own_name()
    began = began_at(process)
    return began == mark if began else _is_there(process)


def began_at(process: int) -> str:
    """In the system's own count; empty where it does not tell."""
    try:
        told = Path(f"/proc/{process}/stat").read_text("utf-8", errors="replace")
        return told.rpartition(")")[2].split()[_BEGAN]
    except (OSError, IndexError):
        return ""


def _is_there(process: int) -> bool:
    if os.name == "nt":  # where to ask would be to end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
