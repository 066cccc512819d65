"""Grain, on ArrayRecord with groups of one record, as it advises for random access. A row is a record of 16 floats."""

from collections.abc import Iterator
from typing import Any

import grain.python as grain  # type: ignore[import-not-found]
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter  # type: ignore[import-not-found]

from benchmarks.data_loading import scale
from benchmarks.data_loading.player import counted, first_after, play, row_numbers

FOLDER = scale.HOME / "array_record"


def write_rows() -> None:
    scale.cleared(FOLDER).mkdir()
    parts = np.array_split(np.load(scale.ROWS_FILE, mmap_mode="r"), scale.FILES)
    for number, part in enumerate(parts):
        writer = ArrayRecordWriter(str(FOLDER / f"part-{number}.array_record"), "group_size:1")
        for row in part:
            writer.write(row.tobytes())
        writer.close()


def parsed(record: bytes) -> Any:
    return np.frombuffer(record, np.float32)


def batches(workers: int, seed: int = 0) -> Any:
    source = grain.ArrayRecordDataSource(sorted(str(path) for path in FOLDER.iterdir()))
    made = grain.MapDataset.source(source).shuffle(seed=seed).map(parsed).batch(scale.BATCH).to_iter_dataset()
    if workers:
        made = made.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return iter(made)


def rows(seconds: float, workers: int) -> tuple[int, float]:
    return counted(batches(workers), len, seconds, workers)


def resume() -> float:
    before = batches(0)
    next(before)
    state = before.get_state() | {"next_index": scale.ROWS // scale.BATCH // 2}

    def resumed() -> Iterator[Any]:
        made: Iterator[Any] = batches(0)
        made.set_state(state)  # type: ignore[attr-defined]
        return made

    return first_after(resumed)


def numbers(seed: int, most: int) -> list[list[int]]:
    return row_numbers(batches(0, seed), lambda batch: batch[:, 0], most)


if __name__ == "__main__":
    play({"write_rows": write_rows, "rows": rows, "resume": resume, "numbers": numbers})
