"""How much host memory snapshots may take, unless somebody says: a share of what this process may have at all."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SHARE = 0.4
LEAST_BYTES = 64 << 20
_UNLIMITED = 1 << 60
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")


class Budget(NamedTuple):
    """So many bytes, and why."""

    bytes: int
    reason: str


def default_budget(environment: Mapping[str, str] = os.environ) -> Budget:
    """A share of the machine's memory, or of the container's, for each of the ranks on this node."""
    machine, limit = _machine_bytes(), _container_bytes()
    most, of = (limit, "the container's") if limit < machine else (machine, "the machine's")
    ranks = _local_ranks(environment)
    found = max(LEAST_BYTES, int(most * SHARE / ranks))
    words = f"{SHARE:.0%} of {of} {most / 2**30:.1f} GiB"
    return Budget(found, words if ranks == 1 else f"{words}, over {ranks} ranks")


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 8 << 30


def _container_bytes() -> int:
    for name in _LIMITS:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < _UNLIMITED:
            return int(text)
    return _UNLIMITED


def _local_ranks(environment: Mapping[str, str]) -> int:
    for name in _LOCAL_RANKS:
        text = environment.get(name, "").partition("(")[0]
        if text.isdecimal() and int(text):
            return int(text)
    return 1
