"""Checkpoints of four ranks: how long until a sharded state is committed, beside DCP, and what the agreement costs; and
what it would cost a thousand, the protocol alone, on virtual time.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import About, Row, Table
from benchmarks.storage import BUILD
from strata.testing.saves.measure import cost_of_saves
from tests.servers.coordinator import coordinator

ABOUT = About("a few minutes")

RANKS = 4
MIB = int(os.environ.get("BENCH_MIB", "1024"))
OVERHEAD_MS = 50.0
MANY_RANKS = 1000
MANY_SAVES = 2
NETWORK_SECONDS, STORAGE_SECONDS = 0.001, 0.005


def run() -> Iterator[Table]:
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-ranks-", dir=BUILD) as folder, coordinator(Path(folder)) as running:
        told = Path(folder) / "told.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command += ["-m", "benchmarks.checkpoint_ranks.rank", folder, str(MIB), str(told), running.address]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        found: dict[str, list[float]] = json.loads(told.read_text())
    size = MIB * 1.048576
    strata, dcp = found["strata"], found["dcp"]
    yield Table(
        f"{MIB:,} MiB of float32 in DTensors on {RANKS} ranks, local disk, until committed",
        [
            _rate("Strata save", strata, size),
            _rate("DCP save", dcp, size),
            _ratio("Strata / DCP", strata, dcp, 1.0),
            _rate("Strata load, into", found["strata load"], size),
            _rate("DCP load, into", found["dcp load"], size),
            _ratio("Strata / DCP", found["strata load"], found["dcp load"], None),
        ],
    )
    yield Table(
        f"What it takes {RANKS} ranks to agree: a save of a few bytes, until committed",
        [
            _milliseconds("rank 0 alone", found["one"]),
            _milliseconds(f"{RANKS} ranks, through the storage", found["agree"]),
            _overhead(found["agree"], found["one"]),
            _milliseconds(f"{RANKS} ranks, through the coordinator", found["coordinated"]),
            _overhead(found["coordinated"], found["one"]),
        ],
    )

    for way in (True, False):
        yield _simulated(coordinator=way)


def _simulated(*, coordinator: bool) -> Table:
    costs = cost_of_saves(
        MANY_RANKS,
        MANY_SAVES,
        coordinator=coordinator,
        network_seconds=NETWORK_SECONDS,
        storage_seconds=STORAGE_SECONDS,
    )
    carried = "through the coordinator" if coordinator else "through the storage"
    return Table(
        f"{MANY_RANKS:,} ranks agree {carried}: the protocol alone, simulated with a network of "
        f"{NETWORK_SECONDS * 1000:g} ms and a storage of {STORAGE_SECONDS * 1000:g} ms for each call",
        [
            _milliseconds(
                "virtual time, until all know it is committed", [cost.virtual_seconds * 1000 for cost in costs]
            ),
            _milliseconds("processor time, of all ranks", [cost.cpu_seconds * 1000 for cost in costs]),
            _calls("calls to the coordinator, of each rank", [cost.coordinator_calls for cost in costs]),
            _calls("calls to the storage, of each rank", [cost.storage_calls for cost in costs]),
        ],
    )


def _calls(what: str, found: list[int]) -> Row:
    return Row(what, statistics.median(found) / MANY_RANKS, min(found) / MANY_RANKS, "")


def _overhead(together: list[float], alone: list[float]) -> Row:
    found = [many - one for many, one in zip(together, alone, strict=True)]
    return Row("  begin to committed, less the writing", statistics.median(found), min(found), "ms", OVERHEAD_MS)


def _rate(what: str, seconds: list[float], size: float) -> Row:
    return Row(what, size / statistics.median(seconds), size / min(seconds), "MB/s")


def _ratio(what: str, own: list[float], other: list[float], target: float | None) -> Row:
    found = [theirs / ours for ours, theirs in zip(own, other, strict=True)]
    return Row(what, statistics.median(found), max(found), "", target, at_least=True)


def _milliseconds(what: str, found: list[float]) -> Row:
    return Row(what, statistics.median(found), min(found), "ms")
