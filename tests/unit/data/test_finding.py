"""Which files a path means."""

import os
from pathlib import Path

import pytest

from strata.data.files import File
from strata.data.finding import find_files
from strata.errors import InvalidInput, NotFound
from strata.storage import BlockingStorage, open_storage

NAMES = [
    "b.csv",
    "a.csv",
    "sub/c.csv",
    "sub/deep/d.csv",
    "README.md",
    ".hidden.csv",
    "_partial.csv",
    "_temporary/e.csv",
    "sub/.git/f.csv",
]
SEEN = ["a.csv", "b.csv", "sub/c.csv", "sub/deep/d.csv"]


@pytest.fixture(params=["local", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        for name in NAMES:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        return str(tmp_path)
    url = f"memory://finding-{tmp_path.name}/some/place"
    storage = BlockingStorage(open_storage(url))
    for name in NAMES:
        storage.write(name, name.encode())
    return url


def names(files: list[File]) -> list[str]:
    for file in files:
        assert file.size == len(os.path.basename(file.path)) or file.size == len(file.read(0, file.size))
        assert file.path.endswith(file.name)
        file.check()
    return [file.name for file in files]


def test_a_folder_is_all_below_it_in_the_order_of_names(root: str) -> None:
    assert names(find_files(root, suffixes=[".csv"])) == SEEN
    assert names(find_files(root)) == ["README.md", *SEEN]
    assert names(find_files(f"{root}/sub")) == ["c.csv", "deep/d.csv"]


def test_without_any_fitting_suffix_all_files_count(root: str) -> None:
    assert names(find_files(f"{root}/sub", suffixes=[".parquet"])) == ["c.csv", "deep/d.csv"]


def test_a_file_is_itself_also_if_it_is_hidden(root: str) -> None:
    assert names(find_files(f"{root}/sub/c.csv")) == ["c.csv"]
    assert names(find_files(f"{root}/.hidden.csv")) == [".hidden.csv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["a.csv", "b.csv"]),
        ("?.csv", ["a.csv", "b.csv"]),
        ("[b-z].csv", ["b.csv"]),
        ("*/*.csv", ["sub/c.csv"]),
        ("**/*.csv", SEEN),
        ("s*/**/*.csv", ["sub/c.csv", "sub/deep/d.csv"]),
        ("sub/*/d.*", ["deep/d.csv"]),
        ("sub/**", ["c.csv", "deep/d.csv"]),
    ],
)
def test_a_pattern_is_what_it_matches(root: str, pattern: str, expected: list[str]) -> None:
    assert names(find_files(f"{root}/{pattern}")) == expected


def test_a_list_keeps_its_order_and_names_what_is_common(root: str) -> None:
    found = find_files([f"{root}/sub", f"{root}/b.csv"])
    assert names(found) == ["sub/c.csv", "sub/deep/d.csv", "b.csv"]
    assert names(find_files([f"{root}/b.csv", f"{root}/a.csv"])) == ["b.csv", "a.csv"]
    assert names(find_files([f"{root}/sub/deep/d.csv", f"{root}/sub/c.csv"])) == ["deep/d.csv", "c.csv"]


def test_what_is_not_there_or_comes_twice_is_told(root: str) -> None:
    with pytest.raises(NotFound):
        find_files(f"{root}/nowhere")
    with pytest.raises(NotFound):
        find_files(f"{root}/*.parquet")
    with pytest.raises(InvalidInput, match="twice"):
        find_files([root, f"{root}/a.csv"])
    with pytest.raises(InvalidInput, match="empty"):
        find_files([])


def test_files_of_several_places_are_one_dataset(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1")
    url = f"memory://places-{tmp_path.name}"
    BlockingStorage(open_storage(url)).write("k/y.csv", b"22")
    found = find_files([tmp_path / "x.csv", f"{url}/k"])
    assert [(file.name, file.size) for file in found] == [("x.csv", 1), ("y.csv", 2)]


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_text("1")
    assert names(find_files(tmp_path.as_uri())) == ["a b.csv"]
    assert names(find_files(f"{tmp_path.as_uri()}/*.csv")) == ["a b.csv"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.csv").write_text("1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "data" / "b.csv").symlink_to(tmp_path / "real" / "a.csv")
    assert names(find_files(tmp_path / "data")) == ["b.csv", "linked/a.csv"]
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    with pytest.raises(InvalidInput, match="leads back"):
        find_files(tmp_path / "data")
    (tmp_path / "data" / "loop").unlink()
    (tmp_path / "data" / "broken").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotFound, match="link to nothing"):
        find_files(tmp_path / "data")


def test_a_name_that_exists_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("1")
    assert names(find_files(tmp_path / "a[1].csv")) == ["a[1].csv"]


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.csv")).write_text("1")
    with pytest.raises(InvalidInput, match="not valid text"):
        find_files(tmp_path)
