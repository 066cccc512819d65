"""Checkpoints: what a save and a load take, beside the bare disk, a bare copy, and what others make of the same state.

Everything takes turns within one run; all sides flush to the disk, and Strata takes its digests. Memory is allocated
and touched before anything is timed, since fresh memory is slow to come; the first save, which needs it, has a table of
its own. `BENCH_MIB=128` makes the states smaller, to try this out: figures are published from whole runs only.
"""

import asyncio
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmarks import About, Table
from benchmarks.storage import BUILD

ABOUT = About("8 minutes")


def run() -> Iterator[Table]:
    # Here, since the processes started below import this package for one module of it.
    from benchmarks.checkpoint_throughput import frozen, loads, many, memory, objects, saves, sizes, stalls
    from benchmarks.checkpoint_throughput.places import local_dcp, local_place
    from benchmarks.checkpoint_throughput.scale import STATE_BYTES
    from benchmarks.checkpoint_throughput.states import layers

    BUILD.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-checkpoints-", dir=BUILD) as folder,
        asyncio.Runner() as loop,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # DCP's, each time, that it is alone
        place = local_place(Path(folder) / "local")
        state = layers(STATE_BYTES)
        dcp = local_dcp(Path(folder) / "local", state)
        yield saves.table(place, state, dcp)
        yield from stalls.tables(place, state, dcp)
        yield from loads.tables(place, state, dcp)
        yield frozen.table(place, state)
        del state
        yield memory.table(place)
        yield from many.tables(place)
        yield sizes.table(place)
        yield from objects.tables(Path(folder) / "seaweedfs", loop)
