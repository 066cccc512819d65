"""HF datasets, from the same Parquet by its own Arrow files: with all rows permuted, and as a stream whose buffer of
10,000 rows is shuffled."""

from typing import Any

import datasets  # type: ignore[import-not-found]

from benchmarks.data_loading import scale
from benchmarks.data_loading.player import counted, play, row_numbers

FOLDER = scale.HOME / "hf"
SHARDS, BUFFER = 64, 10_000


def write_rows() -> None:
    files = sorted(str(path) for path in scale.parquet(scale.ROW_GROUPS[-1]).iterdir())
    datasets.Dataset.from_parquet(files, cache_dir=str(scale.HOME / "hf-cache")).save_to_disk(
        str(scale.cleared(FOLDER))
    )


def batches(streamed: bool, seed: int = 0) -> Any:
    dataset = datasets.load_from_disk(str(FOLDER)).with_format("numpy")
    if not streamed:
        return dataset.shuffle(seed=seed, keep_in_memory=True).iter(scale.BATCH, drop_last_batch=True)
    stream = dataset.to_iterable_dataset(num_shards=SHARDS).shuffle(seed=seed, buffer_size=BUFFER)
    return stream.iter(scale.BATCH, drop_last_batch=True)


def rows(seconds: float, streamed: bool) -> tuple[int, float]:
    return counted(batches(streamed), lambda batch: len(batch["c0"]), seconds)


def numbers(seed: int, most: int, streamed: bool) -> list[list[int]]:
    return row_numbers(batches(streamed, seed), lambda batch: batch["c0"], most)


if __name__ == "__main__":
    play({"write_rows": write_rows, "rows": rows, "numbers": numbers})
