"""Datasets on real object stores: the same samples as from a disk, whatever the network does, and never others."""

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strata import DatasetRegistry
from strata.data.cache import Cache
from strata.data.finding import find_files
from strata.data.indexing import index_dataset
from strata.data.loader import Loader
from strata.errors import DataChanged, NotFound, StorageUnavailable
from tests.e2e.telling import lines, strata_here
from tests.integration.data.places import FILES, IMPATIENT, ROWS, Place, batches_of, rows_of, told
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.servers.processes import BUCKET, Server, s3_client
from tests.unit.data.making import of_parquet, table, written

KINDS = ["parquet", "arrow-file", "arrow-stream", "csv", "jsonl", "webdataset", "tfrecord", "tfexample"]
BATCH = 8


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_a_disk(place: Place, tmp_path: Path, kind: str) -> None:
    made, index = place.put(kind), place.indexed(kind)
    (tmp_path / "data").mkdir()
    expected = written(made, tmp_path / "data", [ROWS // FILES] * FILES)
    assert rows_of(index).equals(expected)
    with Loader(index_dataset(tmp_path / "data", made.format), BATCH, seed=3) as local:
        batches = batches_of(local)
    with Loader(index, BATCH, seed=3, threads=4, cache=tmp_path / "cache") as first:
        assert batches_of(first) == batches
    place.asked()
    with Loader(index, BATCH, seed=3, threads=4, cache=tmp_path / "cache") as again:
        started = iter(again)
        for _ in range(4):
            next(started)
        state = again.state_dict()
    with Loader(index, BATCH, seed=3, cache=tmp_path / "cache") as resumed:
        resumed.load_state_dict(state)
        assert batches_of(resumed) == batches[4:]
    assert place.asked() == []  # all of it was kept, and looked at less than a minute ago
    elsewhere = pickle.loads(pickle.dumps(index)).cached(Cache(tmp_path / "cache"))
    assert rows_of(elsewhere).equals(expected)
    assert sorted(request.method for request in place.asked()) == ["HEAD"] * FILES


def test_raw_files_of_any_name(place: Place) -> None:
    names = ["a b/100%.bin", "label=dog/x[1].bin", "ü+&#?.bin"]
    for number, name in enumerate(names):
        place.storage.write(name, bytes([number]) * number)
    index = index_dataset(place.url, "files")
    assert rows_of(index).to_pydict() == {"path": names, "data": [b"", b"\1", b"\2\2"]}
    assert [file.name for file in find_files(f"{place.url}/*/x[[]1].bin")] == ["label=dog/x[1].bin"]
    assert find_files(f"{place.url}/a b/100%.bin")[0].path == f"{place.url}/a b/100%.bin"
    with pytest.raises(NotFound, match=f"no files for a dataset in {place.url}/nothing"):
        find_files(f"{place.url}/nothing")


@pytest.mark.parametrize("cached", [False, True])
def test_a_file_that_changed_is_told_each_time(place: Place, tmp_path: Path, cached: bool) -> None:
    for number in range(2):
        place.storage.write(f"part-{number}.csv", b"id\n1\n2\n")
    index = index_dataset(place.url, "csv")
    reading = index.cached(Cache(tmp_path)) if cached else index
    place.storage.write("part-1.csv", b"id\n3\n4\n")  # as long, and as good to read
    for _ in range(3):
        with pytest.raises(DataChanged, match=r"part-1.csv changed .*: it was written again") as raised:
            rows_of(reading)
        assert raised.value.file == f"{place.url}/part-1.csv"
    place.storage.delete("part-1.csv")
    with pytest.raises(DataChanged, match=r"part-1.csv changed .*: it is gone"):
        rows_of(reading)
    place.storage.write("part-0.csv", b"id\n")
    with pytest.raises(DataChanged, match=r"part-0.csv changed .*: it had 7 bytes and has 3"):
        rows_of(pickle.loads(pickle.dumps(reading)))


@pytest.mark.xdist_group("seaweedfs")
def test_what_stands_for_a_folder_is_no_file(s3_place: Place, s3_server: Server) -> None:
    """As the web pages of stores and Hadoop leave it: an object without bytes that ends with a slash."""
    root = s3_place.url.rpartition("/")[2]
    for name in ("", "empty/", "empty.csv/", "sub.csv/"):
        s3_client(s3_server.endpoint).put_object(Bucket=BUCKET, Key=f"{root}/{name}", Body=b"")
    s3_place.storage.write("sub.csv/a.csv", b"id\n1\n")
    s3_place.storage.write("none.csv", b"")
    for path in (s3_place.url, f"{s3_place.url}/**"):
        assert [file.name for file in find_files(path)] == ["none.csv", "sub.csv/a.csv"]
    assert index_dataset(s3_place.url, "csv").rows == 1


# -- a bad network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["fail before", "cut"])
def test_what_fails_for_a_while_is_asked_for_again(place: Place, fault: Any) -> None:
    made = place.put("parquet")
    place.breaks(fault, first=1)
    index = index_dataset(place.url, made.format)
    place.breaks(fault, first=1)
    assert rows_of(index).equals(table(ROWS))
    assert len(place.asked()) > FILES


def test_a_storage_that_is_down_is_told_and_the_loader_goes_on_when_it_is_back(place: Place, tmp_path: Path) -> None:
    index = place.indexed("parquet", IMPATIENT)
    with Loader(index, BATCH, shuffle=False) as whole:
        expected = batches_of(whole)
    with Loader(index, BATCH, shuffle=False, memory_bytes=1, threads=1, cache=tmp_path) as loader:
        given = [told(next(iter(loader)))]
        place.breaks("cut")
        with pytest.raises(StorageUnavailable, match="Nothing answers there") as raised:
            given.extend(map(told, loader))
        assert place.url in str(raised.value)
        assert raised.value.retry
        assert len(given) < len(expected)
        place.works()
        while len(given) < len(expected):
            with suppress(StorageUnavailable):  # of a block whose reading had begun before
                given.extend(map(told, loader))
        assert given == expected


def test_nobody_there_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    index = place.indexed("parquet", IMPATIENT)
    for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ENDPOINT"):
        if name in os.environ:
            monkeypatch.setenv(name, "http://127.0.0.1:9")
    elsewhere = pickle.loads(pickle.dumps(index))
    for asked in (lambda: rows_of(elsewhere), lambda: index_dataset(place.url, "parquet", options=IMPATIENT)):
        with pytest.raises(StorageUnavailable, match=r"Nothing answers there: \w+") as raised:
            asked()
        assert BUCKET in str(raised.value)


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("seaweedfs")
def test_the_command_line_takes_its_urls(s3_place: Place) -> None:
    s3_place.put("parquet")
    url = s3_place.url
    assert lines(strata_here("data", "index", url, "-f", "parquet"))[-1] == f"saved as {url}/.strata-index"
    for where in (url, f"{url}/", f"{url}/.strata-index"):
        assert lines(strata_here("data", "check", where)) == [f"{FILES} files indexed: all as they were"]
    one = f"{url}/part-0.parquet"
    for said in (one, one.replace("s3:", "S3:")):
        told = lines(strata_here("data", "index", said, "-f", "parquet"))
        assert told[-1] == f"saved as {url}/.part-0.parquet.strata-index"
        assert lines(strata_here("data", "check", said)) == ["1 file indexed: all as they were"]
    told = lines(strata_here("data", "bench", f"{url}/*.parquet", "-f", "parquet", "--batch-size", "8"))
    assert told[0].split("dataset")[1].strip().startswith(f"{ROWS} samples in {FILES} files")
    s3_place.storage.write("part-1.parquet", of_parquet(table(1)))
    s3_place.storage.delete("part-2.parquet")
    checked = strata_here("data", "check", url)
    assert checked.returncode == 1
    assert f"missing {url}/part-2.parquet" in checked.stdout.decode()
    assert f"{FILES} files indexed: 1 changed, 1 missing" in checked.stdout.decode()


@pytest.mark.xdist_group("seaweedfs")
def test_a_registered_one_is_counted_and_told_in_its_urls(
    s3_place: Place, running: CoordinatorProcess, client: Client
) -> None:
    client.world(1)
    s3_place.put("csv")
    told = strata_here("data", "register", "far", s3_place.url, "-f", "csv", COORDINATOR_URL=running.address)
    assert told.returncode == 0, told.stderr.decode()
    with DatasetRegistry(running.address) as registry:
        assert [each.total_samples for each in registry.list()] == [ROWS]
        assert registry.get_shard("far", 0) == [f"{s3_place.url}/part-{number}.csv" for number in range(FILES)]
