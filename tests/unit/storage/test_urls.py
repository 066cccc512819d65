import os
from pathlib import Path

import pytest

from strata.errors import InvalidInput
from strata.storage.urls import split_object_url


@pytest.mark.parametrize(
    ("url", "folder", "key"),
    [
        ("s3://bucket/a/b.bin", "s3://bucket/a", "b.bin"),
        ("s3://bucket/b.bin", "s3://bucket", "b.bin"),
        ("s3://bucket/a/b/", "s3://bucket/a", "b"),
        ("s3://bucket", "s3://bucket", ""),
        ("s3://bucket/", "s3://bucket", ""),
        ("gcs://bucket/a/100%20", "gs://bucket/a", "100%20"),
        ("azure://container/a", "az://container", "a"),
        ("memory://name/a/b", "memory://name/a", "b"),
        ("memory://name", "memory://name", ""),
        ("memory:///a", "memory://", "a"),
        ("file:///data/a%20b/c%23", "/data/a b", "c#"),
        ("file:///", "/", ""),
        ("/data/run", "/data", "run"),
        ("/data/run/", "/data", "run"),
        ("/data/run/..", "/", "data"),
        ("/", "/", ""),
    ],
)
def test_a_url_is_a_folder_and_a_key(url: str, folder: str, key: str) -> None:
    assert split_object_url(url) == (folder, key)


def test_a_relative_path_is_seen_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    assert split_object_url("a/b") == (f"{here}/a", "b")
    assert split_object_url(".") == os.path.split(here)


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert split_object_url("~/data/x") == (f"{tmp_path}/data", "x")


@pytest.mark.parametrize("url", ["", "ftp://host/a", "s3://", "s3://key:secret@bucket/a", "s3://bucket/a?b"])
def test_what_is_no_storage_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        split_object_url(url)
