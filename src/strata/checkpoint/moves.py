"""Bytes from address to address, within this process. Whoever calls must know that they are there.

A hundred thousand small pieces cost more to go through one by one in Python than to copy, and no other thread runs
meanwhile. Linux takes a list of them: `process_vm_readv`, which reads from any process that may be read, and so from
this one. Where that is missing or forbidden, as it is in some sandboxes, they go one by one.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.int64]

LARGE_BYTES = 64 << 10
"""Copied while other threads may run Python; for less, to let them costs more than the copy."""
PIECES_AT_ONCE = 1024
"""In one call to the system, which takes no more."""

_move_large: Callable[[int, int, int], Any] = ctypes.memmove
_move_small: Callable[[int, int, int], Any] = (
    ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
        ("memmove", ctypes.PyDLL(None))
    )
    if os.name != "nt"
    else ctypes.memmove
)


def move(target: int, source: int, size: int) -> None:
    (_move_large if size >= LARGE_BYTES else _move_small)(target, source, size)


def move_many(targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
    """So many bytes each."""
    for first in range(0, len(sizes), PIECES_AT_ONCE):
        some = slice(first, first + PIECES_AT_ONCE)
        if not _by_the_system(targets[some], sources[some], sizes[some]):
            _one_by_one(targets[some], sources[some], sizes[some])


def _one_by_one(targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
    copy = _move_large if sizes.max(initial=0) >= LARGE_BYTES else _move_small
    for target, source, size in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
        copy(target, source, size)


def _system_call() -> Callable[..., int] | None:
    found = getattr(ctypes.CDLL(None), "process_vm_readv", None) if os.name == "posix" else None
    if found is None:
        return None
    count = ctypes.c_ulong
    found.argtypes = [ctypes.c_int, ctypes.c_void_p, count, ctypes.c_void_p, count, count]
    found.restype = ctypes.c_ssize_t
    call: Callable[..., int] = found
    return call


system_call = _system_call()
"""None where the system has none."""


def _by_the_system(targets: Addresses, sources: Addresses, sizes: Addresses) -> bool:
    """Whether it did."""
    if system_call is None:
        return False
    into, out_of = _vector(targets, sizes), _vector(sources, sizes)
    count = len(sizes)
    done = system_call(os.getpid(), into.ctypes.data, count, out_of.ctypes.data, count, 0)
    return done == int(sizes.sum())


def _vector(addresses: Addresses, sizes: Addresses) -> Addresses:
    """As the system reads it: `struct iovec`, one after the other."""
    return np.stack((addresses, sizes), axis=1)
