"""Large values are read from where they lie: what comes out is what reading whole blocks gives, and damage is told."""

import decimal
import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strata.core.orders import ElasticOrder, ShardLayout
from strata.data import Loader
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.making import Making
from strata.data.output import Finish
from strata.data.remembering import Remembered
from strata.data.runs import Share
from strata.errors import AccessDenied, DataChanged, DataDamaged, DataError
from strata.storage import BlockingStorage, open_storage
from tests.unit.data.making import KINDS, of_arrow, of_tar, outcome, table, written

WIDTHS = ["strata.data.formats.sparse", "strata.data.formats.webdataset", "strata.data.formats.files"]
LEFT = ["arrow-file", "arrow-stream", "webdataset", "webdataset-tiny-blocks", "webdataset-small-blocks"]
ROWS = 40


def payload(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def large(rows: int = ROWS) -> pa.Table:
    """Large values, some of them missing or empty, among columns of many kinds."""
    numbers = range(rows)
    data = [None if number % 9 == 4 else b"" if number % 9 == 5 else payload(number, 50_000) for number in numbers]
    more = [payload(number + 1000, 20_000) for number in numbers]
    maybe = [None if number % 5 == 2 else number for number in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "data": pa.array(data, pa.binary()),
            "flag": pa.array([number % 3 == 0 for number in numbers]),
            "text": pa.array([f"täxt {number}" if number % 4 else None for number in numbers]),
            "more": pa.array(more, pa.large_binary()),
            "maybe": pa.array(maybe, pa.float32()),
            "list": pa.array([[number] * (number % 4) for number in numbers], pa.list_(pa.int32())),
            "wide": pa.array([[str(number)] * 2 for number in numbers], pa.large_list(pa.string())),
            "vector": pa.array([[number, 1.0] for number in numbers], pa.list_(pa.float32(), 2)),
            "pair": pa.array([{"a": number, "b": [str(number)]} for number in numbers]),
            "fixed": pa.array([payload(number, 8) for number in numbers], pa.binary(8)),
            "money": pa.array([decimal.Decimal(number) for number in numbers], pa.decimal128(9, 2)),
            "when": pa.array(numbers, pa.timestamp("us")),
            "small": pa.array([b"s" * (number % 3) for number in numbers], pa.binary()),
        }
    )


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that looks the same, as damage leaves it."""
    monkeypatch.setattr("strata.data.formats.places.FOUND", Remembered(0))


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in WIDTHS:
        monkeypatch.setattr(f"{module}.LARGE_BYTES", 0)


def epoch(index: DatasetIndex, **given: Any) -> dict[str, list[Any]]:
    """The samples of an epoch in the order of the files, by column; all batches are kept until the last is there."""
    with Loader(index, 8, tail="short", **given) as loader:
        numbers = np.concatenate([loader.samples(batch) for batch in range(len(loader))])
        batches = [*loader]
    found = {name: [value for batch in batches for value in batch[name]] for name in batches[0]}
    return {name: [values[place] for place in np.argsort(numbers)] for name, values in found.items()}


def check(index: DatasetIndex, columns: list[str] | None = None) -> None:
    """What the loader gives is what whole blocks hold."""
    expected = pa.concat_tables(index.read(number, columns) for number in range(index.blocks))
    found = epoch(index, columns=columns)
    assert list(found) == expected.column_names
    for name, values in found.items():
        plain = [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values]
        if pa.types.is_timestamp(expected.schema.field(name).type):
            plain = [np.datetime64(value, "us").astype(object) for value in values]
        wanted = expected[name].to_pylist()
        assert [None if value != value else value for value in plain] == wanted, name  # noqa: PLR0124  NaN is missing


def arrow_at(path: Path, data: pa.Table, **options: Any) -> DatasetIndex:
    path.write_bytes(of_arrow(data, **options))
    return index_dataset(path, "arrow")


def left_of(index: DatasetIndex, columns: list[str] | None = None) -> set[str]:
    return {name for number in range(index.blocks) for name in index.parts(number, columns).places}


@pytest.mark.parametrize("stream", [False, True])
def test_large_values_are_left_among_columns_of_every_kind(stream: bool, tmp_path: Path) -> None:
    index = arrow_at(tmp_path / "x.arrow", large(), stream=stream)
    assert left_of(index) == {"data", "more"}
    check(index)


def test_what_was_read_is_as_valid_as_the_whole_block(tmp_path: Path) -> None:
    index = arrow_at(tmp_path / "x.arrow", large())
    for number in range(index.blocks):
        whole, parts = index.read(number), index.parts(number)
        assert parts.rows == whole.num_rows
        assert parts.table.equals(whole.drop_columns(["data", "more"]))


@pytest.mark.parametrize("columns", [["data"], ["id", "more"], ["vector"], ["pair", "data", "text"], ["small"]])
def test_only_columns_that_are_wanted(columns: list[str], tmp_path: Path) -> None:
    index = arrow_at(tmp_path / "x.arrow", large())
    assert left_of(index, columns) == {"data", "more"} & {*columns}
    check(index, columns)


@pytest.mark.parametrize("kind", LEFT)
def test_every_format_that_leaves_values_gives_the_same(kind: str, tmp_path: Path, everything_is_large: None) -> None:
    made = KINDS[kind]
    if kind.startswith("arrow"):
        made = made._replace(write=lambda data: KINDS[kind].write(as_bytes(data)))
    written(made, tmp_path, [31, 5, 1])
    index = index_dataset(tmp_path, made.format)
    assert left_of(index)
    check(index)
    check(index, index.schema.names[:1])


def as_bytes(data: pa.Table) -> pa.Table:
    return data.set_column(2, "text", data["text"].cast(pa.binary()))


def test_small_members_of_a_sample_are_read_with_its_headers(tmp_path: Path) -> None:
    texts = [payload(number, 30_000).hex() for number in range(20)]
    data = table(20).set_column(2, "text", pa.array(texts))
    (tmp_path / "x.tar").write_bytes(of_tar(data))
    index = index_dataset(tmp_path, "webdataset")
    assert left_of(index) == {"txt"}
    check(index)
    check(index, ["value.json"])
    check(index, ["__key__"])


def test_raw_files(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.bin").write_bytes(payload(number, 3_000 * number))
    index = index_dataset(tmp_path, "files")
    assert left_of(index) == {"data"}
    check(index)
    check(index, ["data"])
    check(index, ["path"])


@pytest.mark.parametrize("what", ["compressed", "dictionary", "unknown", "small", "remote"])
def test_what_can_only_be_read_whole_is(what: str, tmp_path: Path) -> None:
    data = large().select(["id", "data"])
    if what == "dictionary":
        data = data.append_column("label", pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode())
    if what == "unknown":
        data = data.append_column("view", pa.array(["a"] * ROWS, pa.string_view()))
    if what == "small":
        data = data.set_column(1, "data", pa.array([b"x" * 100] * ROWS))
    path = tmp_path / "x.arrow"
    index = arrow_at(path, data, compression="zstd" if what == "compressed" else None)
    if what == "remote":
        url = f"memory://lying-{tmp_path.name}"
        BlockingStorage(open_storage(url)).write("x.arrow", path.read_bytes())
        index = index_dataset(url, "arrow")
    assert left_of(index) == set()
    check(index, ["id", "data"])


def test_where_values_lie_is_found_once_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*_: object) -> Any:
        raise AssertionError("it was known")

    monkeypatch.setattr("strata.data.formats.places.FOUND", Remembered(1 << 20))
    path = tmp_path / "x.arrow"
    index = arrow_at(path, large().select(["id", "data"]))
    expected = epoch(index)
    with monkeypatch.context() as patched:
        patched.setattr("strata.data.formats.arrow.sparse_batch", again)
        assert epoch(index) == expected
        with pytest.raises(AssertionError, match="it was known"):
            epoch(index, columns=["data"])
    rewrite(path, of_arrow(large().select(["id", "data"]).slice(1)))
    with pytest.raises(DataChanged):
        epoch(index)
    assert epoch(index_dataset(path, "arrow"))["id"] == expected["id"][1:]


def test_a_read_that_gives_less_than_asked_for_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = arrow_at(tmp_path / "x.arrow", large().select(["data"]))
    expected = epoch(index)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, start: pread(file, min(length, 7_000), start))
    assert epoch(index) == expected


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["arrow", "webdataset", "files"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> DatasetIndex:
    """Three files; the second one is damaged in tests."""
    for part in range(3):
        numbers = range(10 * part, 10 * part + 10)
        if request.param == "files":
            (tmp_path / f"part-{part}.bin").write_bytes(payload(part, 50_000))
        elif request.param == "arrow":
            data = pa.table({"data": [payload(number, 50_000) for number in numbers]})
            (tmp_path / f"part-{part}.arrow").write_bytes(of_arrow(data, rows=5))
        else:
            texts = [payload(number, 25_000).hex() for number in numbers]
            rows = table(10, 10 * part).set_column(2, "text", pa.array(texts))
            (tmp_path / f"part-{part}.tar").write_bytes(of_tar(rows))
    index = index_dataset(tmp_path, request.param)
    assert left_of(index)
    return index


def second(index: DatasetIndex) -> Path:
    return Path(index.file(1).path)


def told_after(index: DatasetIndex, change: Callable[[Path], object]) -> DataError:
    """What is said where one has found all values, but read none, before the second file changes."""
    order = ElasticOrder(ShardLayout(index.rows, index.rows), 0, 0, False, 1)
    finish = Finish("numpy", None, index.schema)
    with closing(Making(index, Share(0, 1), None, finish, memory_bytes=1 << 30, threads=1)) as making:
        wanted = making.held().want(range(index.blocks))
        assert all(each.result() for each in wanted.values())
        making.held().done(wanted)
        change(second(index))
        with pytest.raises(DataError) as told:
            list(making.batches(order, range(order.batches)))
    assert told.value.file == str(second(index))
    assert told.value.samples is not None
    first, end = told.value.samples
    before, inside = index.file_rows().tolist()[:2]
    assert before <= first < end <= before + inside
    assert f"samples {first} to {end - 1}" in str(told.value)
    return told.value


def rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))


def test_a_file_that_is_cut_short_before_its_values_are_read_is_told(dataset: DatasetIndex) -> None:
    told = told_after(dataset, lambda path: os.truncate(path, path.stat().st_size // 2))
    assert isinstance(told, DataChanged)
    assert "bytes and has" in str(told)


def test_a_file_that_is_gone_before_its_values_are_read_is_told(dataset: DatasetIndex) -> None:
    told = told_after(dataset, Path.unlink)
    assert isinstance(told, DataChanged)
    assert "it is gone" in str(told)


def test_a_file_that_was_written_again_before_its_values_are_read_is_told(dataset: DatasetIndex) -> None:
    told = told_after(dataset, lambda path: rewrite(path, path.read_bytes()[::-1]))
    assert isinstance(told, DataChanged)
    assert "written again" in str(told)


def test_a_file_that_may_not_be_read_is_no_damage(dataset: DatasetIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    with Loader(dataset, 1, shuffle=False) as loader, monkeypatch.context() as patched:
        patched.setattr(os, "open", denied)
        with pytest.raises(AccessDenied, match="must be allowed"):
            list(loader)


def test_a_file_that_is_opened_is_closed_again(dataset: DatasetIndex) -> None:
    epoch(dataset)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        epoch(dataset)
    told_after(dataset, Path.unlink)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.slow
def test_flipped_bytes_in_a_batch_are_an_error_or_values_in_the_same_number(tmp_path: Path) -> None:
    data = large(20)
    path = tmp_path / "x.arrow"
    index = arrow_at(path, data, rows=10)
    whole, stat, rng = path.read_bytes(), path.stat(), random.Random(3)
    told = 0
    for _ in range(300):
        damaged = bytearray(whole)
        block = index.block(rng.randrange(2))
        damaged[block.start + rng.randrange(1500)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        found = outcome(lambda: pa.table({"data": epoch(index, columns=["data", "text", "pair"])["data"]}))
        if isinstance(found, DataError):
            told += 1
            assert isinstance(found, DataDamaged)
            assert found.file == str(path)
            assert found.samples in ((0, 10), (10, 20))
        else:
            assert found.num_rows == 20
    assert told > 30


@pytest.mark.parametrize("edges", [[0, 5, 3], [-1, 5, 9], [0, 5, 1 << 30]])
def test_a_value_that_would_end_elsewhere_is_told(edges: list[int], tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    values = [payload(0, 50_000), payload(1, 50_000)]
    index = arrow_at(path, pa.table({"data": values}))
    good = np.array([0, 50_000, 100_000], "<i4").tobytes()
    whole, stat = path.read_bytes(), path.stat()
    assert whole.count(good) == 1
    path.write_bytes(whole.replace(good, np.array(edges, "<i4").tobytes()))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(DataDamaged, match=r"samples 0 to 1\).* does not end where it should"):
        index.parts(0)
