"""LitData, in its own chunks of 64 MiB. A row is an array of 16 floats, a sample bytes."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from litdata import StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found]
from litdata.streaming.writer import BinaryWriter  # type: ignore[import-not-found]

from benchmarks.data_loading import scale
from benchmarks.data_loading.player import counted, first_after, play, row_numbers

ROWS, SAMPLES = scale.HOME / "litdata-rows", scale.HOME / "litdata-samples"

warnings.simplefilter("ignore")


def write_rows() -> None:
    _write(ROWS, np.load(scale.ROWS_FILE, mmap_mode="r"))


def write_samples() -> None:
    with scale.SAMPLES_FILE.open("rb") as source:
        _write(SAMPLES, (source.read(scale.SAMPLE_BYTES) for _ in range(scale.SAMPLES)))


def _write(folder: Any, items: Any) -> None:
    scale.cleared(folder).mkdir()
    writer = BinaryWriter(str(folder), chunk_bytes=scale.CHUNK_BYTES)
    for number, item in enumerate(items):
        writer[number] = np.array(item) if isinstance(item, np.ndarray) else item
    writer.done()
    writer.merge()


def loader(workers: int, window: str, seed: int = 0) -> Any:
    """As it comes ("auto"), the rows of a chunk are shuffled only within stretches of 256."""
    dataset = StreamingDataset(str(ROWS), shuffle=True, seed=seed, item_shuffle_window=window)
    return StreamingDataLoader(dataset, batch_size=scale.BATCH, num_workers=workers)


def rows(seconds: float, workers: int, window: str) -> tuple[int, float]:
    return counted(loader(workers, window), len, seconds, workers)


def samples(seconds: float, batched: bool) -> tuple[int, float]:
    """By its loader, or one after the other by the dataset itself."""
    dataset = StreamingDataset(str(SAMPLES), shuffle=True)
    if not batched:
        return counted(dataset, lambda _: 1, seconds)
    return counted(StreamingDataLoader(dataset, batch_size=scale.SAMPLES_BATCH, num_workers=0), len, seconds)


def resume(window: str) -> float:
    before = loader(0, window)
    given = iter(before)
    next(given)
    state = before.state_dict()
    consumed = scale.ROWS // scale.BATCH // 2 * scale.BATCH
    state["dataset"] = before.dataset.state_dict(consumed, 0, scale.BATCH)
    state["num_samples_yielded"] = consumed

    def resumed() -> Iterator[Any]:
        made = loader(0, window)
        made.load_state_dict(state)
        return iter(made)

    return first_after(resumed)


def numbers(seed: int, most: int, window: str) -> list[list[int]]:
    return row_numbers(loader(0, window, seed), lambda batch: batch[:, 0], most)


if __name__ == "__main__":
    play(
        {
            "write_rows": write_rows,
            "write_samples": write_samples,
            "rows": rows,
            "samples": samples,
            "resume": resume,
            "numbers": numbers,
        }
    )
