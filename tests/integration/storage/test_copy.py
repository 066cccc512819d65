"""Copies between storages of every kind: whole, bounded, and never onto themselves."""

import asyncio
import os
import secrets
from pathlib import Path

import pytest

from strata.errors import InvalidInput, ObjectNotFound, StorageError
from strata.storage import BlockingStorage, MemoryStorage, open_storage
from strata.storage.copy import PIECE_BYTES, PIECES_AHEAD, Tally, copy, read_pieces_blocking
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, Server

pytestmark = pytest.mark.xdist_group("seaweedfs")

LARGE = os.urandom(1 << 20) * (PIECE_BYTES * (PIECES_AHEAD + 2) // (1 << 20)) + b"end"
TWO = {"a": b"1", "b/c": b"2"}
TREE = {"empty": b"", "small": b"small", "deep/er/large": LARGE, **{f"many/{n:03}": b"%d" % n for n in range(40)}}


@pytest.fixture
def s3_url(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"


@pytest.fixture
def memory_url() -> str:
    return f"memory://{secrets.token_hex(8)}"


def fill(url: str, objects: dict[str, bytes]) -> None:
    with BlockingStorage(open_storage(url)) as storage:
        for key, data in objects.items():
            storage.write(key, data)


def contents(url: str) -> dict[str, bytes]:
    with BlockingStorage(open_storage(url)) as storage:
        return {entry.path: storage.read(entry.path) for entry in storage.list_all()}


def copied(source: str, target: str, *, recursive: bool = False) -> Tally:
    return asyncio.run(copy(source, target, recursive=recursive))


def test_a_folder_goes_round_all_storages(s3_url: str, memory_url: str, tmp_path: Path) -> None:
    fill(memory_url, TREE)
    for source, target in [(memory_url, s3_url), (s3_url, f"{tmp_path}/back"), (f"{tmp_path}/back", f"{s3_url}-2")]:
        tally = copied(source, target, recursive=True)
        assert (tally.objects, tally.bytes) == (len(TREE), sum(map(len, TREE.values())))
        assert (tally.objects, tally.bytes) == (tally.objects_found, tally.bytes_found)
        assert contents(target) == TREE
    assert not (tmp_path / "back" / ".strata-tmp").exists()


def test_the_source_keeps_its_name_in_a_folder(memory_url: str, tmp_path: Path) -> None:
    fill(f"{memory_url}/run", TWO)
    copied(f"{memory_url}/run", f"{tmp_path}/new/", recursive=True)
    copied(f"{memory_url}/run", f"{tmp_path}/again", recursive=True)
    copied(f"{memory_url}/run", f"{tmp_path}/again", recursive=True)
    copied(f"{memory_url}/run/a", str(tmp_path))
    copied(f"{memory_url}/run/a", f"{memory_url}/run/b")
    assert contents(str(tmp_path)) == {
        **{f"new/run/{key}": data for key, data in TWO.items()},
        **{f"again/{key}": data for key, data in TWO.items()},
        "a": b"1",
    }
    assert contents(f"{memory_url}/run/b") == {"c": b"2", "a": b"1"}


def test_a_whole_bucket_has_no_name_to_keep(memory_url: str, tmp_path: Path) -> None:
    fill(memory_url, {"a": b"1"})
    copied(memory_url, f"{tmp_path}/", recursive=True)
    assert contents(str(tmp_path)) == {"a": b"1"}


def test_a_folder_is_not_copied_into_itself(memory_url: str, tmp_path: Path) -> None:
    fill(f"{memory_url}/a", {"x": b"1"})
    fill(f"{tmp_path}/a", {"x": b"1"})
    for root in (memory_url, str(tmp_path)):
        for target in (f"{root}/a", f"{root}/a/", f"{root}/a/b", f"{root}/"):
            with pytest.raises(InvalidInput, match="itself"):
                copied(f"{root}/a", target, recursive=True)
        with pytest.raises(InvalidInput, match="itself"):
            copied(f"{root}/a/x", f"{root}/a/x")
    copied(f"{memory_url}/a", f"{memory_url}/ab", recursive=True)
    assert contents(f"{memory_url}/ab") == {"x": b"1"}


def test_a_folder_wants_recursion_and_nothing_is_an_error(memory_url: str, tmp_path: Path) -> None:
    fill(memory_url, {"a/x": b"1"})
    with pytest.raises(InvalidInput, match="is a folder: -r"):
        copied(f"{memory_url}/a", str(tmp_path))
    for recursive in (False, True):
        with pytest.raises(ObjectNotFound, match="there is nothing at"):
            copied(f"{memory_url}/nope", str(tmp_path), recursive=recursive)
    assert os.listdir(tmp_path) == []


def test_what_a_storage_inside_has_not_finished_is_not_copied(memory_url: str, tmp_path: Path) -> None:
    fill(f"{tmp_path}/run", {"a": b"1"})
    assert (tmp_path / "run" / ".strata-tmp").exists()
    copied(str(tmp_path), memory_url, recursive=True)
    assert contents(memory_url) == {"run/a": b"1"}


def test_an_object_replaced_while_it_is_read_is_not_passed_off_as_whole() -> None:
    storage = MemoryStorage()
    BlockingStorage(storage).write("a", LARGE)
    pieces = read_pieces_blocking(storage, "a", len(LARGE))
    next(pieces)
    BlockingStorage(storage).write("a", LARGE + LARGE)
    with pytest.raises(StorageError, match="was replaced while it was read"):
        list(pieces)


def test_the_first_error_stops_the_rest_and_leaves_whole_objects(memory_url: str, tmp_path: Path) -> None:
    fill(memory_url, {"a": b"1", "b": b"2", "c": b"3"})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "object").write_bytes(b"in the way")
    with pytest.raises(InvalidInput, match="there is a folder of that name"):
        copied(memory_url, f"{tmp_path}/", recursive=True)
    assert all(data in (b"1", b"3", b"in the way") for data in contents(str(tmp_path)).values())
    assert not (tmp_path / ".strata-tmp").exists()
