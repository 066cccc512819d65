"""Storage: what a disk and an S3 server can take, and how much of it Strata gives.

Everything is compared with the plainest way of doing the same, in turns within one run: the rates of a shared machine
differ from minute to minute, and only what was measured together can be divided.
"""

import asyncio
import tempfile
from pathlib import Path

from benchmarks import About, Table

ABOUT = About("4 minutes")

BUILD = Path(__file__).parents[2] / "build"
"""On a disk, which the system's folder for temporary files need not be. Git does not see it."""


def run() -> list[Table]:
    # Here, since the processes started below import this package for one module of it.
    from benchmarks.storage import local, memory, seaweed, uploads

    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-storage-", dir=BUILD) as folder, asyncio.Runner() as loop:
        return [
            *local.tables(Path(folder) / "local", loop),
            *seaweed.tables(Path(folder) / "seaweedfs", loop),
            *uploads.tables(loop),
            memory.table(),
        ]
