"""The same rows and samples for everybody, made once: as numpy has them, for peers to write in their own formats, and
in the formats that Strata reads in place."""

import io
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data_loading import scale
from benchmarks.data_loading.contenders import player
from strata.data import DatasetIndex, index_dataset, save_index
from strata.data.formats.parquet import Parquet
from strata.data.index import BlockTable, FileTable

ARROW_ROWS = 64
AT_ONCE = 2
"""Peers that write."""
HUGE_FILES, HUGE_GROUPS = 10_000, 100


def prepare(peers: list[str]) -> None:
    """What is not there yet. A part counts as there when its mark is, which is written last."""
    scale.HOME.mkdir(parents=True, exist_ok=True)
    _once("rows", _rows)
    for row_group in scale.ROW_GROUPS:
        _once(f"parquet-{row_group}", partial(_parquet, row_group))
    _once("samples", _samples)
    _once("arrow", _arrow)
    _once("tar", _tar)
    _once("huge", lambda: save_index(_huge(), scale.HUGE_INDEX))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda kind: _once(f"{kind}-rows", partial(_written, kind, "write_rows")), peers))
    if "litdata" in peers:
        _once("litdata-samples", partial(_written, "litdata", "write_samples"))


def _once(what: str, make: Callable[[], object]) -> None:
    mark = scale.HOME / f".{what}"
    if not mark.exists():
        make()
        mark.touch()


def _written(kind: str, act: str) -> None:
    with player(kind) as writer:
        writer.ask(act)


def _rows() -> None:
    made = np.random.default_rng(1).random((scale.ROWS, scale.COLUMNS), np.float32)
    made[:, 0] = np.arange(scale.ROWS)  # exact to 16 million
    np.save(scale.ROWS_FILE, made)


def _parquet(row_group: int) -> None:
    folder = scale.cleared(scale.parquet(row_group))
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.load(scale.ROWS_FILE), scale.FILES)):
        columns = {f"c{column}": np.ascontiguousarray(part[:, column]) for column in range(scale.COLUMNS)}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", row_group_size=row_group)
    save_index(index_dataset(str(folder), "parquet"), scale.parquet_index(row_group))


def _samples() -> None:
    random = np.random.default_rng(2)
    with scale.SAMPLES_FILE.open("wb") as file:
        for _ in range(scale.SAMPLES):
            file.write(random.bytes(scale.SAMPLE_BYTES))


def _parts() -> Iterator[list[bytes]]:
    with scale.SAMPLES_FILE.open("rb") as file:
        for count in _counts():
            yield [file.read(scale.SAMPLE_BYTES) for _ in range(count)]


def _counts() -> list[int]:
    return [len(part) for part in np.array_split(np.arange(scale.SAMPLES), scale.FILES)]


def _arrow() -> None:
    scale.cleared(scale.ARROW).mkdir()
    schema = pa.schema([("data", pa.binary())])
    for number, part in enumerate(_parts()):
        with pa.ipc.new_file(str(scale.ARROW / f"part-{number}.arrow"), schema) as writer:
            writer.write_table(pa.table({"data": part}, schema), max_chunksize=ARROW_ROWS)
    save_index(index_dataset(str(scale.ARROW), "arrow"), scale.ARROW_INDEX)


def _tar() -> None:
    scale.cleared(scale.TAR).mkdir()
    for number, part in enumerate(_parts()):
        _tar_of(part, scale.TAR / f"part-{number}.tar")
    save_index(index_dataset(str(scale.TAR), "webdataset"), scale.TAR_INDEX)


def _tar_of(samples: list[bytes], path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for number, data in enumerate(samples):
            member = tarfile.TarInfo(f"{number:06}.bin")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def _huge() -> DatasetIndex:
    """Of 10 billion samples in a million row groups of 10,000 files, which are not there."""
    blocks = HUGE_FILES * HUGE_GROUPS
    rows = scale.HUGE_SAMPLES // blocks
    files = FileTable(
        (str(scale.HOME / "huge"),),
        np.zeros(HUGE_FILES, np.int32),
        pa.array([f"part-{number:05}.parquet" for number in range(HUGE_FILES)]),
        np.full(HUGE_FILES, rows * HUGE_GROUPS * 64, np.int64),
        pa.array(["1"] * HUGE_FILES),
        np.zeros(HUGE_FILES, np.uint64),
    )
    per_block = np.full(blocks, rows, np.int64)
    groups = np.tile(np.arange(HUGE_GROUPS), HUGE_FILES)
    table = BlockTable(np.full(HUGE_FILES, HUGE_GROUPS, np.int64), groups, per_block * 64, per_block)
    return DatasetIndex(Parquet(), pa.schema([("c0", pa.float32())]), files, table)
