"""The most memory that a save takes, in a process of its own: what the budget says, and little more."""

import asyncio
import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import Row, Table
from benchmarks.checkpoint_throughput.places import Place
from benchmarks.checkpoint_throughput.saves import Saves
from benchmarks.checkpoint_throughput.scale import MIB, STATE_BYTES
from benchmarks.checkpoint_throughput.states import layers
from benchmarks.storage.clients import Server, strata_storage
from benchmarks.storage.memory import STATUS, status_bytes
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig

ALLOWED_BYTES = 16 * MIB
"""For what is neither state nor budget: stacks of threads, manifests, the rest of a page."""
HEADER_BYTES = 1 * MIB
LEAST_BYTES = 16 * MIB
FIRST_BYTES = 8 * MIB
SAVES = 3


def table(place: Place) -> Table:
    """Linux only, since nobody else tells a process's peak apart from that of the process that started it."""
    size = STATE_BYTES
    budgets = {"budget that holds the state": size + HEADER_BYTES, "budget of a quarter": max(LEAST_BYTES, size // 4)}
    rows = [_row(place, f"{what}, {most / 1e6:.0f} MB", size, most) for what, most in budgets.items()]
    return Table(
        f"Peak memory of saving {size >> 20:,} MiB, {place.name}, beyond the state", rows if STATUS.exists() else []
    )


def _row(place: Place, what: str, size: int, budget: int) -> Row:
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, processes) as fresh:
        grown = fresh.submit(_growth, place.reach, size, budget).result() / 1e6
    return Row(what, grown, grown, "MB", (budget + ALLOWED_BYTES) / 1e6)


def _growth(reach: str | Server, size: int, budget: int) -> int:
    """How far the peak rises above where the process stood with its state, after a small save made all else."""
    state = layers(size)
    where = reach if isinstance(reach, str) else strata_storage(reach)
    config = CheckpointManagerConfig(memory_bytes=budget)
    with CheckpointManager(where, job_id="first", config=config) as manager:
        manager.save(layers(FIRST_BYTES), 1)
    gc.collect()
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    with CheckpointManager(where, keep_count=1, job_id=f"memory-{budget}", config=config) as manager:
        strata = Saves(manager, state)
        for _ in range(SAVES):
            strata.save()
            strata.settle()
        grown = status_bytes("VmHWM") - before
    if not isinstance(where, str):
        asyncio.run(where.close())
    return grown
