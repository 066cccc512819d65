"""Strata: rows from Parquet, samples from Arrow or from tars. An index was made before, and is loaded from its file."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data_loading import scale
from benchmarks.data_loading.player import counted, first_after, play, row_numbers
from benchmarks.storage.memory import STATUS, status_bytes
from strata.data import Loader, load_index
from strata.data.columnar import arrow

INDEXES = {"arrow": scale.ARROW_INDEX, "tar": scale.TAR_INDEX}


# What a library imports is nobody's time.
arrow("parquet"), arrow("ipc")


def loader(row_group: int, seed: int = 0) -> Loader:
    return Loader(load_index(scale.parquet_index(row_group)), scale.BATCH, seed=seed)


def rows(seconds: float, row_group: int) -> tuple[int, float]:
    with loader(row_group) as made:
        return counted(made, lambda batch: len(batch["c0"]), seconds)


def samples(seconds: float, kept_as: str) -> tuple[int, float]:
    columns = {"arrow": ["data"], "tar": ["bin"]}[kept_as]
    index = load_index(INDEXES[kept_as])
    with Loader(index, scale.SAMPLES_BATCH, columns=columns) as made:
        return counted(made, lambda batch: len(batch[columns[0]]), seconds)


def resume(row_group: int) -> float:
    with loader(row_group) as before:
        state = before.state_dict() | {"batch": len(before) // 2}

    def resumed() -> Iterator[Any]:
        made = loader(row_group)
        made.load_state_dict(state)
        return iter(made)

    return first_after(resumed)


def wanted(row_group: int) -> list[int]:
    """The row groups that the batch in the middle of an epoch is of, counted over all files."""
    with loader(row_group) as made:
        blocks, _ = made.index.locate(made.samples(len(made) // 2))
    return sorted({int(block) for block in blocks})


def numbers(seed: int, most: int, row_group: int) -> list[list[int]]:
    with loader(row_group, seed) as made:
        return row_numbers(made, lambda batch: batch["c0"], most)


def start() -> tuple[float, float]:
    """Milliseconds to the first batch's sample numbers and where they lie, and megabytes that the process grew by."""
    if STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before, began = status_bytes("VmRSS"), time.perf_counter()
    with Loader(load_index(scale.HUGE_INDEX), scale.HUGE_BATCH) as made:
        made.index.locate(made.samples(0))
        taken = time.perf_counter() - began
    return taken * 1000, (status_bytes("VmHWM") - before) / 1e6


if __name__ == "__main__":
    play({"rows": rows, "samples": samples, "resume": resume, "wanted": wanted, "numbers": numbers, "start": start})
