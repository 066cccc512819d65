"""Where states are saved, and who saves them there: Strata, and DCP as its users set it up."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from benchmarks.checkpoint_throughput.dcp import Dcp, tuned
from benchmarks.checkpoint_throughput.states import State
from benchmarks.storage.clients import Server
from benchmarks.storage.local import forget
from benchmarks.storage.plain import buffered
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.checkpoint.manager import Where
from strata.storage.direct import Block

DCP_SETTINGS: tuple[dict[str, Any], ...] = (
    {"thread_count": 2},
    {"thread_count": 4},
    {"thread_count": 2, "single_file_per_rank": False},
)
"""Tried for DCP, which then runs with its best."""


class Place(NamedTuple):
    """A storage. `reach` is how a process of its own gets there; `folder` is where it lies on a disk, if it does.

    `write` is the plainest way to put something there, and `plainly` what that is called.
    """

    name: str
    where: Where
    reach: str | Server
    plainly: str
    write: Callable[[str, Block], object]
    folder: Path | None = None

    def manager(self, job: str, *, keep_count: int | None = 1, **config: Any) -> CheckpointManager:
        return CheckpointManager(
            self.where, keep_count=keep_count, job_id=job, config=CheckpointManagerConfig(**config)
        )

    def reader(self, job: str) -> CheckpointReader:
        return CheckpointReader(self.where, job_id=job)


def local_place(folder: Path) -> Place:
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, data: Block) -> None:
        buffered(folder / name, data)

    return Place("local disk", str(folder), str(folder), "write + fsync", write, folder)


def local_dcp(folder: Path, state: State) -> Dcp:
    """Set up as saves this state fastest."""
    return tuned([_local_dcp(folder, setting) for setting in DCP_SETTINGS], state)


def _local_dcp(folder: Path, setting: dict[str, Any]) -> Dcp:
    def sync(name: str) -> None:
        """Its files are flushed by itself, but not their names."""
        sync_folder(folder / name)
        sync_folder(folder)

    return Dcp(
        ", ".join(f"{name}={value}" for name, value in setting.items()),
        lambda name: FileSystemWriter(folder / name, sync_files=True, **setting),
        lambda name: FileSystemReader(folder / name),
        sync,
        lambda name: shutil.rmtree(folder / name),
    )


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def forget_all(folder: Path) -> None:
    """Every file below, out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            forget(path)
