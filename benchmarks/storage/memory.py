"""What a streaming upload needs beyond the parts in flight, whatever the object's size."""

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import Row, Table
from benchmarks.storage import sink
from benchmarks.storage.clients import Server, strata_storage
from benchmarks.storage.source import source_bytes
from strata.storage import StorageOptions
from strata.storage.backend import MIB

OPTIONS = StorageOptions(part_bytes=8 * MIB, concurrency=4)
ALLOWED_BYTES = 8 * MIB
"""For what the client keeps beside the parts: connections, their buffers, and stacks of threads."""
PIECE_BYTES = 4 * MIB
SIZES = (256 * MIB, 2048 * MIB)
STATUS = Path("/proc/self/status")


def table() -> Table:
    """Linux only, since nobody else tells a process's peak apart from that of the process that started it."""
    rows = [_row(size) for size in SIZES] if STATUS.exists() else []
    parts = f"{OPTIONS.concurrency} parts of {OPTIONS.part_bytes // MIB} MiB"
    return Table(f"Peak memory of S3Storage.open_writer, {parts}, beyond an upload of one part", rows)


def _row(size: int) -> Row:
    most = (OPTIONS.part_bytes * OPTIONS.concurrency + ALLOWED_BYTES) / 1e6
    processes = multiprocessing.get_context("spawn")
    with sink.running() as endpoint, ProcessPoolExecutor(1, processes) as fresh:
        grown = fresh.submit(_growth, endpoint, size).result() / 1e6
    return Row(f"object of {size // MIB:,} MiB", grown, grown, "MB", most)


def _growth(endpoint: str, size: int) -> int:
    """In a process of its own: how far its peak rises above where it stood before the stream."""
    return asyncio.run(_stream(endpoint, size))


async def _stream(endpoint: str, size: int) -> int:
    piece = source_bytes(PIECE_BYTES)
    async with strata_storage(Server(endpoint, "bucket", "key", "secret"), OPTIONS) as storage:
        await storage.write("first", piece)
        before = status_bytes("VmRSS")
        async with storage.open_writer("large") as writer:
            for _ in range(size // PIECE_BYTES):
                await writer.write(piece)
    return status_bytes("VmHWM") - before


def status_bytes(name: str) -> int:
    """What the system says of this process, such as VmRSS."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
