"""How much data there is, and where each contender has it. `BENCH_ROWS`, `BENCH_SAMPLES` and `BENCH_SECONDS` make it
less, to try this out: figures are published from whole runs only."""

import os
import shutil
from pathlib import Path

ROWS = int(os.environ.get("BENCH_ROWS", "2000000"))
COLUMNS = 16
"""Of float32. The first holds the number of the row, so that any order can be told from what comes out."""
BATCH = 256
SAMPLES, SAMPLE_BYTES = int(os.environ.get("BENCH_SAMPLES", "10000")), 100_000
SAMPLES_BATCH = 64
SECONDS = float(os.environ.get("BENCH_SECONDS", "2"))
"""Of a turn, unless the epoch is over before."""
CHUNK_BYTES = 64 << 20
"""Of the files that LitData and Mosaic make, which is the default of both."""
ROW_GROUPS = (10_000, 65_536)
"""Of Parquet, in rows: 640 kB, which are read as a shard is, and 4 MB."""
FILES = 8

HOME = Path(__file__).parents[2] / "build" / f"bench-data-loading-{ROWS}-{SAMPLES}"
"""Kept between runs: to write it takes longer than to read it."""
ROWS_FILE, SAMPLES_FILE = HOME / "rows.npy", HOME / "samples.bin"
ARROW, ARROW_INDEX = HOME / "arrow", HOME / "arrow.index"
TAR, TAR_INDEX = HOME / "tar", HOME / "tar.index"
HUGE_INDEX = HOME / "huge.index"
HUGE_SAMPLES, HUGE_BATCH = 10_000_000_000, 4096


def parquet(row_group: int) -> Path:
    return HOME / f"parquet-{row_group}"


def parquet_index(row_group: int) -> Path:
    return HOME / f"parquet-{row_group}.index"


def cleared(folder: Path) -> Path:
    """Without what a run that was stopped has left there."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder
