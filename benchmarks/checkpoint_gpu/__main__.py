"""Runs this benchmark alone, with nothing but what it measures installed, and prints all it found."""

import argparse
import sys
from pathlib import Path

import msgspec

from benchmarks.checkpoint_gpu.measure import measure, tables
from benchmarks.checkpoint_gpu.savers import DCP_MODES
from benchmarks.checkpoint_gpu.training import LAYERS


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.checkpoint_gpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to this file")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"{LAYERS} make a state of 9.7 GB")
    parser.add_argument("--steps", type=float, nargs="*", default=[0.02, 0.13, 1.0], help="seconds")
    parser.add_argument("--without-dcp", action="store_true")
    options = parser.parse_args()
    report = measure(options.layers, () if options.without_dcp else DCP_MODES, tuple(options.steps))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    for table in tables(report):
        print(f"\n{table.title}")
        for row in table.rows:
            told = "" if row.met is None else f"   {'met' if row.met else 'missed'}: {row.target:.3g} {row.unit}"
            print(f"  {row.what:45} {row.median:10.3g} {row.best:10.3g} {row.unit}{told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
