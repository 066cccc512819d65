"""The limits: row groups read in order by pyarrow and turned into numpy arrays, and plain reads of the samples' bytes.
Nothing is shuffled, and no batch is made."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data_loading import scale
from benchmarks.data_loading.player import play


def rows(seconds: float, row_group: int) -> tuple[int, float]:
    """Each group whole, its columns by as many threads as there are cores."""
    began, found = time.perf_counter(), 0
    for path in sorted(scale.parquet(row_group).iterdir()):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                arrays = [column.to_numpy() for column in table.columns]
                found += len(arrays[0])
    return found, time.perf_counter() - began


def groups(row_group: int, wanted: list[int]) -> float:
    """Milliseconds to read just these row groups, counted over all files, by as many threads as there are cores."""
    footers = {path: pq.read_metadata(path) for path in sorted(scale.parquet(row_group).iterdir())}
    places = [(path, group) for path, footer in footers.items() for group in range(footer.num_row_groups)]

    def read(number: int) -> pa.Table:
        path, group = places[number]
        with pq.ParquetFile(path, metadata=footers[path]) as file:  # one cannot be read by two threads at once
            return file.read_row_group(group, use_threads=False)

    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tables = list(pool.map(read, wanted))
    taken = time.perf_counter() - began
    assert all(table.num_columns == scale.COLUMNS for table in tables)
    return taken * 1000


def samples(seconds: float, threads: int) -> tuple[int, float]:
    """One after the other from where they lie, each as `bytes`; all threads read."""
    descriptor = os.open(scale.SAMPLES_FILE, os.O_RDONLY)

    def read(first: int) -> int:
        return sum(
            len(os.pread(descriptor, scale.SAMPLE_BYTES, place * scale.SAMPLE_BYTES)) // scale.SAMPLE_BYTES
            for place in range(first, scale.SAMPLES, threads)
        )

    try:
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            found = sum(pool.map(read, range(threads)))
        return found, time.perf_counter() - began
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    play({"rows": rows, "groups": groups, "samples": samples})
