"""The same rows in every format, as other programs write them."""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from strata.data.formats import AnyFormat, format_of
from strata.data.formats.crc32c import crc32c, masked
from strata.data.index import DatasetIndex
from strata.errors import DataError
from tests.unit.data.exampleoracle import Feature, encoded

TEXTS = ["plain", 'quo"ted', "two\nlines", "", "comma, comma", "ünïcödé", '""', "\r\n"]


def table(rows: int, start: int = 0) -> pa.Table:
    """Numbers, some of them missing, and texts that want quoting."""
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "value": pa.array([None if number % 7 == 3 else number / 4 + 0.125 for number in numbers], pa.float64()),
            "text": pa.array([TEXTS[number % len(TEXTS)] + str(number) for number in numbers], pa.string()),
        }
    )


def of_parquet(data: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(data, sink, **{"row_group_size": 13, "write_page_checksum": True, **options})
    return sink.getvalue()


def of_arrow(data: pa.Table, *, stream: bool = False, compression: str | None = None, rows: int = 13) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=rows)
    return sink.getvalue()


def of_feather(data: pa.Table) -> bytes:
    sink = io.BytesIO()
    pa.feather.write_feather(data, sink, chunksize=13)
    return sink.getvalue()


def of_csv(data: pa.Table, **options: str) -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator=options.pop("lineterminator", "\n"), **options)  # type: ignore[arg-type]
    writer.writerow(data.column_names)
    writer.writerows(zip(*(column.to_pylist() for column in data.columns), strict=True))
    return sink.getvalue().encode()


def without_lf(data: pa.Table) -> pa.Table:
    """Python quotes only what its own line ends need."""
    texts = pa.array([text.replace("\n", "\r") for text in data["text"].to_pylist()], pa.string())
    return data.set_column(2, "text", texts)


def of_jsonl(data: pa.Table) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in data.to_pylist()).encode()


def of_tar(data: pa.Table, format: int = tarfile.PAX_FORMAT, prefix: str = "d/") -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as archive:
        for row in data.to_pylist():
            add_member(archive, f"{prefix}{row['id']:06}.txt", row["text"].encode())
            if row["value"] is not None:
                add_member(archive, f"{prefix}{row['id']:06}.Value.json", json.dumps(row["value"]).encode())
    return sink.getvalue()


def add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def of_records(records: list[bytes]) -> bytes:
    pieces = [piece for record in records for piece in (len(record).to_bytes(8, "little"), record)]
    lengths = np.array([*map(len, pieces)], np.int64)
    sums = masked(crc32c(b"".join(pieces), np.cumsum(lengths) - lengths, lengths)).astype("<u4")
    return b"".join(piece + each.tobytes() for piece, each in zip(pieces, sums, strict=True))


def of_tfrecord(data: pa.Table) -> bytes:
    return of_records([text.encode() for text in data["text"].to_pylist()])


def of_examples(data: pa.Table) -> bytes:
    return of_records([encoded(_features(row)) for row in data.to_pylist()])


def _features(row: dict[str, Any]) -> dict[str, Feature]:
    features: dict[str, Feature] = {"text": ("bytes", [row["text"].encode()]), "id": ("int64", [row["id"]])}
    return features if row["value"] is None else {**features, "value": ("float", [row["value"]])}


def as_webdataset(data: pa.Table, prefix: str = "d/") -> pa.Table:
    """What reading `of_tar` should give."""
    values = [None if value is None else json.dumps(value).encode() for value in data["value"].to_pylist()]
    columns = {
        "__key__": pa.array([f"{prefix}{number:06}" for number in data["id"].to_pylist()], pa.string()),
        "txt": pa.array([text.encode() for text in data["text"].to_pylist()], pa.binary()),
        "value.json": pa.array(values, pa.binary()),
    }
    return pa.table(columns)


def as_tfrecord(data: pa.Table) -> pa.Table:
    return pa.table({"record": pa.array([text.encode() for text in data["text"].to_pylist()], pa.binary())})


def as_examples(data: pa.Table) -> pa.Table:
    values = [[] if value is None else [value] for value in data["value"].to_pylist()]
    columns = {
        "id": data["id"],
        "text": pa.array([text.encode() for text in data["text"].to_pylist()], pa.binary()),
        "value": pa.array(values, pa.list_(pa.float32())),
    }
    return pa.table(columns)


class Made(NamedTuple):
    """A format, how rows become a file of it, and what they are when they are read."""

    format: AnyFormat
    suffix: str
    write: Callable[[pa.Table], bytes]
    expected: Callable[[pa.Table], pa.Table] = lambda data: data


RAGGED = {"value": "float[]"}

KINDS = {
    "parquet": Made(format_of("parquet"), ".parquet", of_parquet),
    "parquet-one-group": Made(format_of("parquet"), ".pq", lambda data: of_parquet(data, row_group_size=10**6)),
    "arrow-file": Made(format_of("arrow"), ".arrow", of_arrow),
    "arrow-stream": Made(format_of("arrow"), ".arrow", lambda data: of_arrow(data, stream=True)),
    "arrow-zstd": Made(format_of("arrow"), ".arrow", lambda data: of_arrow(data, compression="zstd")),
    "arrow-stream-lz4": Made(format_of("arrow"), ".ipc", lambda data: of_arrow(data, stream=True, compression="lz4")),
    "feather": Made(format_of("feather"), ".feather", of_feather),
    "csv": Made(format_of("csv"), ".csv", of_csv),
    "csv-tiny-blocks": Made(format_of("csv", block_bytes=1), ".csv", of_csv),
    "csv-small-blocks": Made(format_of("csv", block_bytes=100), ".csv", of_csv),
    "csv-crlf": Made(format_of("csv", block_bytes=64), ".csv", lambda data: of_csv(data, lineterminator="\r\n")),
    "csv-cr": Made(
        format_of("csv", block_bytes=64),
        ".csv",
        lambda data: of_csv(without_lf(data), lineterminator="\r"),
        without_lf,
    ),
    "csv-tabs": Made(
        format_of("csv", delimiter="\t", quote="'", block_bytes=90),
        ".tsv",
        lambda data: of_csv(data, delimiter="\t", quotechar="'"),
    ),
    "jsonl": Made(format_of("jsonl"), ".jsonl", of_jsonl),
    "jsonl-tiny-blocks": Made(format_of("jsonl", block_bytes=1), ".jsonl", of_jsonl),
    "jsonl-small-blocks": Made(format_of("jsonl", block_bytes=150), ".jsonl", of_jsonl),
    "webdataset": Made(format_of("webdataset"), ".tar", of_tar, as_webdataset),
    "webdataset-tiny-blocks": Made(format_of("webdataset", block_bytes=1), ".tar", of_tar, as_webdataset),
    "webdataset-small-blocks": Made(format_of("webdataset", block_bytes=5000), ".tar", of_tar, as_webdataset),
    "tfrecord": Made(format_of("tfrecord"), ".tfrecord", of_tfrecord, as_tfrecord),
    "tfrecord-tiny-blocks": Made(format_of("tfrecord", block_bytes=1), ".tfrecord", of_tfrecord, as_tfrecord),
    "tfrecord-small-blocks": Made(format_of("tfrecord", block_bytes=70), ".tfrecord", of_tfrecord, as_tfrecord),
    "tfexample": Made(format_of("tfexample", types=RAGGED), ".tfrecord", of_examples, as_examples),
    "tfexample-small-blocks": Made(
        format_of("tfexample", types=RAGGED, block_bytes=200), ".tfrecord", of_examples, as_examples
    ),
}


def written(made: Made, folder: Path, counts: list[int]) -> pa.Table:
    """Files of so many rows each; what all of them hold together."""
    start = 0
    for number, count in enumerate(counts):
        (folder / f"part-{number:03}{made.suffix}").write_bytes(made.write(table(count, start)))
        start += count
    return made.expected(table(start))


def outcome(read: Callable[[], pa.Table]) -> pa.Table | DataError:
    """What is read, or what is told."""
    try:
        return read()
    except DataError as error:
        return error


def read_all(index: DatasetIndex, columns: list[str] | None = None) -> pa.Table:
    return pa.concat_tables(blocks(index, columns)) if index.blocks else index.schema.empty_table()


def blocks(index: DatasetIndex, columns: list[str] | None = None) -> Iterator[pa.Table]:
    return (index.read(number, columns) for number in range(index.blocks))
