"""How much host memory snapshots may take, unless somebody says: a share of what this process may have at all."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from strata.logs import get_logger
from strata.texts import readable_bytes

logger = get_logger("strata.checkpoint")

SHARE = 0.4
LEAST_BYTES = 64 << 20
_UNLIMITED = 1 << 60
GROUPS = Path("/proc/self/cgroup")
MOUNTED = Path("/sys/fs/cgroup")
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")


class Budget(NamedTuple):
    """So many bytes, and why."""

    bytes: int
    reason: str


def default_budget(environment: Mapping[str, str] = os.environ) -> Budget:
    """A share of the machine's memory, or of the container's, for each of the ranks on this node. It is told in the
    log: nobody else said it."""
    machine, limit = machine_bytes(), _container_bytes()
    most, of = (limit, "the container's") if limit < machine else (machine, "the machine's")
    ranks = _local_ranks(environment)
    found = max(LEAST_BYTES, int(most * SHARE / ranks))
    words = f"{SHARE:.0%} of {of} {most / 2**30:.1f} GiB"
    chosen = Budget(found, words if ranks == 1 else f"{words}, over {ranks} ranks")
    logger.info("snapshots may take %s of memory: %s", readable_bytes(chosen.bytes), chosen.reason)
    return chosen


def machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 8 << 30


def _container_bytes() -> int:
    """The least limit counts: a container's, a job's of Slurm, a unit's of systemd."""
    return min((limit for file in _limit_files() if (limit := _limit(file)) is not None), default=_UNLIMITED)


def _limit_files() -> Iterator[Path]:
    """Of this process's control group and of those it lies in, in either version. What is no file limits nothing: in a
    container the group may go by the name it has outside."""
    for folder, name, group in _groups():
        yield folder / name
        parts = PurePosixPath(group.lstrip("/")).parts
        if ".." not in parts:  # a group that lies beside what can be seen here
            for depth in range(1, len(parts) + 1):
                yield folder.joinpath(*parts[:depth], name)


def _groups() -> Iterator[tuple[Path, str, str]]:
    """Where groups are mounted, what the file with the limit is called, and which group is ours."""
    first, second = (MOUNTED / "memory", "memory.limit_in_bytes"), (MOUNTED, "memory.max")
    yield *first, ""
    yield *second, ""
    for line in (_read(GROUPS) or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield *second, group
        elif "memory" in controllers.split(","):
            yield *first, group


def _limit(file: Path) -> int | None:
    text = _read(file)
    return int(text) if text is not None and text.isdecimal() and int(text) < _UNLIMITED else None


def _read(file: Path) -> str | None:
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return None


def _local_ranks(environment: Mapping[str, str]) -> int:
    for name in _LOCAL_RANKS:
        text = environment.get(name, "").partition("(")[0]
        if text.isdecimal() and int(text):
            return int(text)
    return 1
