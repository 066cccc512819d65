"""Checkpoints of four ranks: how long until a sharded state is committed, beside DCP, and what the agreement costs."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Row, Table
from benchmarks.storage import BUILD
from tests.servers.coordinator import coordinator

RANKS = 4
MIB = int(os.environ.get("BENCH_MIB", "1024"))
OVERHEAD_MS = 50.0


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
