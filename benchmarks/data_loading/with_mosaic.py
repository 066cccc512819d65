"""MosaicML Streaming, in its own MDS shards of 64 MiB. A row is an array of 16 floats."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found]
from streaming.base.util import clean_stale_shared_memory  # type: ignore[import-not-found]

from benchmarks.data_loading import scale
from benchmarks.data_loading.player import counted, first_after, play, row_numbers

FOLDER = scale.HOME / "mosaic"


def write_rows() -> None:
    columns = {"row": f"ndarray:float32:{scale.COLUMNS}"}
    with MDSWriter(out=str(scale.cleared(FOLDER)), columns=columns, size_limit=scale.CHUNK_BYTES) as writer:
        for row in np.load(scale.ROWS_FILE, mmap_mode="r"):
            writer.write({"row": np.array(row)})


def dataset(seed: int = 0) -> Any:
    return StreamingDataset(local=str(FOLDER), shuffle=True, shuffle_seed=seed, batch_size=scale.BATCH)


def loader(workers: int, seed: int = 0) -> Any:
    return StreamingDataLoader(dataset(seed), batch_size=scale.BATCH, num_workers=workers)


def rows(seconds: float, workers: int) -> tuple[int, float]:
    clean_stale_shared_memory()
    return counted(loader(workers), lambda batch: len(batch["row"]), seconds, workers)


def resume() -> float:
    before = loader(0)
    next(iter(before))
    consumed = scale.ROWS // scale.BATCH // 2 * scale.BATCH
    state = before.dataset.state_dict(consumed, from_beginning=True)
    del before
    clean_stale_shared_memory()

    def resumed() -> Iterator[Any]:
        made = loader(0)
        made.load_state_dict(state)
        return iter(made)

    return first_after(resumed)


def numbers(seed: int, most: int) -> list[list[int]]:
    clean_stale_shared_memory()
    return row_numbers(loader(0, seed), lambda batch: batch["row"][:, 0], most)


if __name__ == "__main__":
    play({"write_rows": write_rows, "rows": rows, "resume": resume, "numbers": numbers})
