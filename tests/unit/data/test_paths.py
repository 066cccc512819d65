"""A dataset's path as one text: the same for all who mean the same files, and read back as what was given."""

import os
from pathlib import Path

import pytest

from strata.data.paths import MAX_CHARS, read, written
from strata.errors import InvalidInput


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/data/imagenet", "/data/imagenet"),
        ("/data//imagenet/", "/data/imagenet"),
        (Path("/data/imagenet"), "/data/imagenet"),
        ("/data/imagenet/*.parquet", "/data/imagenet/*.parquet"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket", "s3://bucket"),
        ("memory://", "memory://"),
        (["/data/b", Path("/data/a/")], "/data/b\n/data/a"),
        (("/data/a",), "/data/a"),
    ],
)
def test_one_text_for_the_same_files(path: object, text: str) -> None:
    assert written(path) == text  # type: ignore[arg-type]
    assert read(text) == (text.split("\n") if "\n" in text else text)


def test_what_is_relative_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert written("images") == str(tmp_path / "images")
    assert written("../x") == os.path.normpath(tmp_path.parent / "x")
    assert written("~/images") == "/home/somebody/images"


@pytest.mark.parametrize("path", ["", [], [""], b"/data", 7, None, "/a\n/b", ["/a", 3], {"/a"}])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(InvalidInput, match="path"):
        written(path)  # type: ignore[arg-type]


def test_a_list_has_an_end() -> None:
    with pytest.raises(InvalidInput, match="name a folder or a pattern"):
        written([f"/data/{number:08}" for number in range(MAX_CHARS // 14)])
