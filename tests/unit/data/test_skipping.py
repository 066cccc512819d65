"""What cannot be read is left out where that was asked for, and counted: nothing else is, and no step is lost."""

import logging
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from strata.data import Loader, Mix, index_dataset, load_index, save_index
from strata.data.files import LocalFolder, RemoteFolder
from strata.data.index import DatasetIndex
from strata.errors import (
    AccessDenied,
    DataChanged,
    DataDamaged,
    DataMismatch,
    InvalidInput,
    NotFound,
    StorageUnavailable,
)
from strata.storage import BlockingStorage, open_storage
from tests.unit.data.making import KINDS, of_arrow, of_parquet, of_tar, table, written

BATCH = 8
LARGE = [f"strata.data.formats.{module}.LARGE_BYTES" for module in ("sparse", "webdataset", "files")]
BLOCKS = {
    "parquet": "text",
    "arrow-file": "text",
    "csv-small-blocks": "text",
    "jsonl-small-blocks": "text",
    "webdataset-small-blocks": "txt",
    "tfrecord-small-blocks": "record",
    "tfexample-small-blocks": "text",
}
"""Kinds of which a file has several blocks, and a column of each."""
LYING = ["arrow-bytes", "webdataset-small-blocks", "files"]


class Data:
    """Three files; `values` are what one column of them holds before anything happens to the second."""

    def __init__(self, folder: Path, index: DatasetIndex, column: str) -> None:
        self.folder, self.index, self.column = folder, index, column
        self.values = [
            value for block in range(index.blocks) for value in index.read(block, [column])[column].to_pylist()
        ]
        self.path = Path(index.file(1).path)
        edges = np.cumsum([0, *index.file_rows()])
        self.second = range(int(edges[1]), int(edges[2]))
        """The samples of the second file."""

    def loader(self, **given: Any) -> Loader:
        kept = {"columns": [self.column], "shard_size": 5, "tail": "short", "on_damage": "skip", **given}
        return Loader(self.index, BATCH, **kept)

    def check(self, lost: range, code: str, **given: Any) -> None:
        """An epoch has all but the lost ones, in their batches, and says so."""
        with self.loader(**given) as loader:
            batches = [*loader]
            assert len(batches) == len(loader)
            loader.set_epoch(0)
            for number, batch in enumerate(batches):
                kept = [sample for sample in loader.samples(number).tolist() if sample not in lost]
                assert list(batch[self.column]) == [self.values[sample] for sample in kept]
            skipped = loader.skipped
            mine = {sample for number in range(len(loader)) for sample in loader.samples(number).tolist()}
        assert skipped.samples == len(mine & {*lost})
        told = {(each.file, each.code) for each in skipped.blocks}
        assert told == ({(str(self.path), code)} if mine & {*lost} else set())
        found = {sample for each in skipped.blocks for sample in range(*each.samples)}
        assert mine & {*lost} <= found <= {*lost}


def made(kind: str, folder: Path) -> Data:
    if kind == "files":
        for number in range(3):
            (folder / f"part-{number}.bin").write_bytes(bytes([number]) * 100)
        return Data(folder, index_dataset(folder, "files"), "data")
    if kind == "arrow-bytes":
        for number in range(3):
            rows = pa.table({"data": [b"%d" % each for each in range(40 * number, 40 * number + 40)]})
            (folder / f"part-{number}.arrow").write_bytes(of_arrow(rows))
        return Data(folder, index_dataset(folder, "arrow"), "data")
    written(KINDS[kind], folder, [40, 40, 25])
    return Data(folder, index_dataset(folder, KINDS[kind].format), BLOCKS[kind])


@pytest.fixture(params=[*BLOCKS, "files", *(f"{kind}, lying" for kind in LYING)])
def data(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    kind, _, lying = request.param.partition(", ")
    if lying:
        for name in LARGE:
            monkeypatch.setattr(name, 0)
    found = made(kind, tmp_path)
    assert bool(found.index.parts(0, [found.column]).places) == bool(lying)
    return found


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """As damage does it: neither the size nor the time tells."""
    stat = path.stat()
    path.write_bytes(change(path.read_bytes()))
    assert path.stat().st_size == stat.st_size
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


# -- while reading ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_gone_is_left_out(data: Data) -> None:
    data.path.unlink()
    data.check(data.second, "data_changed")
    data.check(data.second, "data_changed", shuffle=False)


def test_a_file_that_was_cut_short_is_left_out(data: Data) -> None:
    os.truncate(data.path, data.path.stat().st_size // 2)
    data.check(data.second, "data_changed")


def test_a_file_that_was_written_again_is_left_out(data: Data) -> None:
    data.path.write_bytes(data.path.read_bytes())
    os.utime(data.path, ns=(1, 1))
    data.check(data.second, "data_changed")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_rank_takes_as_many_steps(data: Data, rank: int) -> None:
    data.path.unlink()
    data.check(data.second, "data_changed", rank=rank, world_size=3)


@pytest.mark.parametrize("kind", BLOCKS)
def test_only_the_block_that_is_damaged_is_left_out(kind: str, tmp_path: Path) -> None:
    data = made(kind, tmp_path)
    number = int(data.index.first_block[1]) + 1
    start = data.index.block(number).start
    if kind == "parquet":
        start = pq.ParquetFile(data.path).metadata.row_group(1).column(2).data_page_offset
    rewrite(data.path, lambda whole: whole[:start] + b"\xff" * 60 + whole[start + 60 :])
    lost = range(*data.index.first_row[number : number + 2].tolist())
    assert 0 < len(lost) < len(data.second)
    with pytest.raises(DataDamaged), data.loader(on_damage="raise") as loader:
        list(loader)
    data.check(lost, "data_damaged")


def test_each_block_is_logged_once_with_file_and_samples(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    data.path.unlink()
    with caplog.at_level(logging.WARNING, "strata.data"), data.loader() as loader:
        list(loader)
        list(loader)
        blocks = loader.skipped.blocks
        assert loader.skipped.samples == 2 * len(data.second)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(blocks)
    for each in blocks:
        wanted = f"samples {each.samples[0]} to {each.samples[1] - 1} of {data.path} are left out: "
        assert sum(message.startswith(wanted) and "it is gone" in message for message in told) == 1


def test_a_batch_of_which_nothing_is_left_has_its_columns(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int16()), "text": ["a", "b"], "v": pa.array([[1.0] * 3] * 2, VECTOR)})
    for number in range(2):
        (tmp_path / f"{number}.parquet").write_bytes(of_parquet(rows))
    index = index_dataset(tmp_path, "parquet")
    (tmp_path / "0.parquet").unlink()
    with Loader(index, 2, shuffle=False, on_damage="skip") as loader:
        nothing, whole = loader
    assert nothing["id"].shape == (0,)
    assert nothing["id"].dtype == np.int16
    assert nothing["v"].shape == (0, 3)
    assert nothing["text"].tolist() == []
    assert whole["id"].tolist() == [1, 2]
    with Loader(index, 2, shuffle=False, on_damage="skip", output="torch") as loader:
        assert [len(batch["id"]) for batch in loader] == [0, 2]


VECTOR = pa.list_(pa.float32(), 3)


def test_only_what_was_given_out_counts(tmp_path: Path) -> None:
    data = made("parquet", tmp_path)
    data.path.unlink()
    with data.loader(shuffle=False) as loader:
        list(islice(loader, 6))
        assert loader.skipped.samples == 6 * BATCH - data.second.start
        state = loader.state_dict()
        assert state["batch"] == 6
    with data.loader(shuffle=False) as resumed:
        resumed.load_state_dict(state)
        assert sum(len(batch["text"]) for batch in resumed) == 25
        assert resumed.skipped.samples == data.second.stop - 6 * BATCH


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_leave_out_the_same_and_say_how_many(data: Data, workers: int) -> None:
    data.path.unlink()
    with data.loader() as alone:
        expected = [list(batch[data.column]) for batch in alone]
    with data.loader() as loader:
        batches = DataLoader(loader.dataset(), batch_size=None, num_workers=workers)
        found = [list(batch[data.column]) for batch in loader.over(batches)]
        assert loader.skipped.samples == len(data.second)
        assert bool(loader.skipped.blocks) == (workers == 0)
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loaders_of_a_mix_count_for_themselves(workers: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    data = [made("parquet", tmp_path / name) for name in ("a", "b")]
    data[1].path.unlink()
    with data[0].loader(tail="drop") as whole, data[1].loader(tail="drop") as damaged:
        mix = Mix({whole: 1, damaged: 1}, BATCH)
        batches = DataLoader(mix.dataset(), batch_size=None, num_workers=workers)
        given = [*islice(mix.over(batches), 4 * len(damaged))]
        missing = BATCH * len(given) - sum(len(batch["text"]) for batch in given)
        assert whole.skipped.samples == 0
        # What workers have prepared counts, too.
        assert damaged.skipped.samples >= missing > 0
        assert damaged.skipped.samples == missing or workers


def test_without_being_asked_nothing_is_left_out(data: Data) -> None:
    data.path.unlink()
    with data.loader(on_damage="raise") as loader, pytest.raises(DataChanged) as told:
        list(loader)
    assert told.value.file == str(data.path)
    assert told.value.samples is not None
    assert {*range(*told.value.samples)} <= {*data.second}


# -- what is no damage -----------------------------------------------------------------------------------------------


def test_a_folder_that_is_gone_or_empty_is_an_error(data: Data) -> None:
    for path in [*data.folder.iterdir()]:
        path.unlink()
    with data.loader() as loader, pytest.raises(StorageUnavailable, match="mounted"):
        list(loader)
    data.folder.rmdir()
    with data.loader() as loader, pytest.raises(StorageUnavailable, match="mounted"):
        list(loader)


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made("arrow-file", tmp_path)

    def denied(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalFolder, "read_ranges", denied)
    with data.loader() as loader, pytest.raises(AccessDenied):
        list(loader)
    with pytest.raises(AccessDenied):
        index_dataset([tmp_path, tmp_path.parent / "nothing"], "webdataset", on_damage="skip")


def test_a_storage_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://skipping-{tmp_path.name}"
    storage = BlockingStorage(open_storage(url))
    for number in range(2):
        storage.write(f"{number}.arrow", of_arrow(table(10, 10 * number)))
    index = index_dataset(url, "arrow")

    def silent(*_: object) -> Any:
        raise StorageUnavailable("no answer", storage=url)

    with monkeypatch.context() as patched:
        patched.setattr(RemoteFolder, "read_ranges", silent)
        with Loader(index, 5, on_damage="skip", columns=["id"]) as loader, pytest.raises(StorageUnavailable):
            list(loader)
        with pytest.raises(StorageUnavailable):
            index_dataset(url, "webdataset", on_damage="skip")
    storage.delete("0.arrow")
    with Loader(index, 5, shuffle=False, on_damage="skip", columns=["id"]) as loader:
        assert [len(batch["id"]) for batch in loader] == [0, 0, 5, 5]
        assert loader.skipped.samples == 10


@pytest.mark.parametrize("on_damage", ["ignore", None, True])
def test_what_to_do_must_be_one_of_two(on_damage: Any, tmp_path: Path) -> None:
    data = made("parquet", tmp_path)
    with pytest.raises(InvalidInput, match="on_damage"):
        data.loader(on_damage=on_damage)
    with pytest.raises(InvalidInput, match="on_damage"):
        index_dataset(tmp_path, "parquet", on_damage=on_damage)


# -- while indexing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "arrow-file", "arrow-stream", "webdataset", "tfrecord", "jsonl", "csv"])
def test_a_file_that_was_cut_short_before_it_was_indexed_is_left_out(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(KINDS[kind], tmp_path, [10, 10, 10])
    path = next(tmp_path.glob("part-001*"))
    whole = path.read_bytes()
    broken = whole[: len(whole) // 2] if kind != "csv" else b'id,value,text\n1,2,"never closed'
    path.write_bytes(broken + b"{" * (kind == "jsonl"))
    with pytest.raises(DataDamaged):
        index_dataset(tmp_path, KINDS[kind].format)
    seen: list[tuple[int, int, int]] = []
    with caplog.at_level(logging.WARNING, "strata.data"):
        index = index_dataset(
            tmp_path, KINDS[kind].format, on_damage="skip", threads=1, progress=lambda *done: seen.append(done)
        )
    assert index.rows == 20
    assert index.files == 2
    assert [(each.file, each.code) for each in index.skipped] == [(str(path), "data_damaged")]
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]
    assert seen[-1] == (3, 3, 20)
    with Loader(index, 10) as loader:
        assert loader.skipped.files == index.skipped
        assert loader.skipped.samples == 0
        assert sum(len(next(iter(batch.values()))) for batch in loader) == 20


def test_the_loader_asks_for_its_index_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(of_tar(table(5)))
    (tmp_path / "b.tar").write_bytes(of_tar(table(5))[:3000])
    with pytest.raises(DataDamaged, match=r"b\.tar"):
        Loader(tmp_path, 5, format="webdataset")
    with Loader(tmp_path, 5, format="webdataset", on_damage="skip") as loader:
        assert len(loader) == 1
        assert [each.file for each in loader.skipped.files] == [str(tmp_path / "b.tar")]


def test_paths_of_a_list_that_have_nothing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(of_tar(table(5)))
    paths = [tmp_path / "gone.tar", tmp_path / "a.tar", tmp_path / "none-*.tar"]
    with pytest.raises(NotFound):
        index_dataset(paths, "webdataset")
    index = index_dataset(paths, "webdataset", on_damage="skip")
    assert index.rows == 5
    assert [(each.file, each.code) for each in index.skipped] == [
        (str(tmp_path / "gone.tar"), "not_found"),
        (str(tmp_path / "none-*.tar"), "not_found"),
    ]
    with pytest.raises(StorageUnavailable, match="mounted"):
        index_dataset([*paths, tmp_path / "elsewhere" / "b.tar"], "webdataset", on_damage="skip")
    with pytest.raises(NotFound, match=r"gone\.tar"):
        index_dataset([tmp_path / "gone.tar"], "webdataset", on_damage="skip")


@pytest.mark.parametrize("odd", [0, 1, 3])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_file_whose_columns_differ_from_most_is_left_out(kind: str, odd: int, tmp_path: Path) -> None:
    written(KINDS[kind], tmp_path, [10, 10, 10, 10])
    path = sorted(tmp_path.iterdir())[odd]
    other = table(7)
    # JSON lines may lack columns, and a text may be any number: only a number where there are texts does not fit.
    fields = pa.array([{"a": 1}] * 7) if kind == "jsonl" else other["text"]
    data = other.set_column(2, "text" if kind == "jsonl" else "other", fields)
    path.write_bytes(KINDS[kind].write(data))
    with pytest.raises(DataMismatch):
        index_dataset(tmp_path, KINDS[kind].format)
    index = index_dataset(tmp_path, KINDS[kind].format, on_damage="skip")
    assert index.rows == 30
    assert index.schema.names == ["id", "value", "text"]
    assert [(each.file, each.code) for each in index.skipped] == [(str(path), "data_mismatch")]


def test_where_nothing_is_left_the_first_error_is_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tar").write_bytes(of_tar(table(5))[:3000])
    with pytest.raises(DataDamaged, match=r"a\.tar"):
        index_dataset(tmp_path, "webdataset", on_damage="skip")


def test_what_was_left_out_is_kept_with_the_index(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(of_tar(table(5)))
    (tmp_path / "b.tar").write_bytes(of_tar(table(5))[:3000])
    index = index_dataset(tmp_path, "webdataset", on_damage="skip")
    save_index(index, tmp_path / "index")
    found = load_index(tmp_path / "index")
    assert found.skipped == index.skipped
    assert found.fingerprint == index_dataset(tmp_path / "a.tar", "webdataset").fingerprint
