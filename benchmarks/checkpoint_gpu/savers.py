"""The ways to save that are compared. Each begins a save of a state and says how to wait for what."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig

DCP_THREADS = 8


class Going(NamedTuple):
    """A save under way: until what may be updated again, and until it is durable."""

    before_update: Callable[[], None]
    durable: Callable[[], None]
    is_durable: Callable[[], bool]


def nothing() -> None:
    pass


class Strata:
    """This package."""

    def __init__(self, folder: Path, overlap: str) -> None:
        self.name = "Strata" if overlap == "none" else f'Strata, overlap="{overlap}"'
        self.folder = folder / f"strata-{overlap}"
        self.manager = CheckpointManager(
            self.folder, keep_count=1, config=CheckpointManagerConfig(overlap=overlap, memory_bytes=24 << 30)
        )

    def save(self, state: Any, step: int) -> Going:
        handle = self.manager.save_async(state, step)
        return Going(nothing, lambda: (handle.result(), None)[1], handle.done)

    def load(self, state: Any) -> None:
        self.manager.load(into=state)

    def close(self) -> None:
        self.manager.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Dcp:
    """torch.distributed.checkpoint in one of its modes, its writer tuned."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.name, self.mode, self.folder = f"DCP, {mode}", mode, folder / "dcp"
        self.stager: Any = None
        if mode == "async, pinned, staged behind":
            self.stager = DefaultStager(StagingOptions(True, False, True, True))
        elif mode == "async, pinned":
            self.stager = DefaultStager(StagingOptions(True, False, False, True))

    def _writer(self) -> Any:
        shutil.rmtree(self.folder, ignore_errors=True)
        return FileSystemWriter(self.folder, thread_count=DCP_THREADS, single_file_per_rank=False, sync_files=True)

    def save(self, state: Any, step: int) -> Going:
        if self.mode == "blocking":
            state_dict_saver.save(state, storage_writer=self._writer())
            return Going(nothing, nothing, lambda: True)
        kind = AsyncCheckpointerType.PROCESS if "process" in self.mode else AsyncCheckpointerType.THREAD
        found: Any = state_dict_saver.async_save(
            state, storage_writer=self._writer(), async_checkpointer_type=kind, async_stager=self.stager
        )
        if hasattr(found, "upload_completion"):
            staged, done = found.staging_completion, found.upload_completion
            return Going(lambda: (staged.result(), None)[1], lambda: (done.result(), None)[1], done.done)
        return Going(nothing, lambda: (found.result(), None)[1], found.done)

    def load(self, state: Any) -> None:
        state_dict_loader.load(state, storage_reader=FileSystemReader(self.folder))

    def close(self) -> None:
        if self.stager is not None:
            self.stager.close()
        shutil.rmtree(self.folder, ignore_errors=True)


DCP_MODES = ("blocking", "async", "async, process", "async, pinned", "async, pinned, staged behind")


# -- the limits --------------------------------------------------------------------------------------------------------


class Pinned:
    """Pinned memory for every tensor, to copy to and to write from."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.sources = [tensor for tensor in tensors if tensor.is_cuda]
        self.targets = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in self.sources]

    def copy(self) -> None:
        """Device to host, as fast as it goes."""
        for source, target in zip(self.sources, self.targets, strict=True):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()


def bare_write(path: Path, size: int, threads: int = 8, window: int = 32 << 20) -> None:
    """So many bytes to the disk with O_DIRECT from a few threads, then fsync."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
    raw = np.ones(threads * window + 4096, np.uint8)
    start = -raw.ctypes.data % 4096

    def write(number: int) -> None:
        own = raw[start + number * window : start + (number + 1) * window]
        for at in range(number * window, size, threads * window):
            os.pwrite(fd, own.data, at)

    workers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.fsync(fd)
    os.close(fd)
