"""Tars as tools write them, and those that are refused."""

import io
import tarfile
from pathlib import Path

import pytest

from strata.data.indexing import index_dataset
from strata.errors import DataDamaged
from tests.unit.data.making import add_member, of_tar, read_all, table

LONG = "x" * 180


def packed(names: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as archive:
        for name, data in names.items():
            add_member(archive, name, data)
    return sink.getvalue()


def rows(tmp_path: Path, data: bytes) -> list[dict[str, object]]:
    (tmp_path / "x.tar").write_bytes(data)
    found: list[dict[str, object]] = read_all(index_dataset(tmp_path / "x.tar", "webdataset")).to_pylist()
    return found


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("prefix", ["", f"{'d' * 90}/{'e' * 40}/", "ünï/"])
def test_every_kind_of_header(tmp_path: Path, format: int, prefix: str) -> None:
    data = table(9)
    found = rows(tmp_path, of_tar(data, format, prefix))
    assert [row["__key__"] for row in found] == [f"{prefix}{number:06}" for number in range(9)]
    assert [row["txt"] for row in found] == [text.encode() for text in data["text"].to_pylist()]


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_longer_than_a_header(tmp_path: Path, format: int) -> None:
    found = rows(tmp_path, packed({f"{LONG}1.txt": b"one", f"{LONG}2.txt": b"two"}, format))
    assert found == [{"__key__": f"{LONG}1", "txt": b"one"}, {"__key__": f"{LONG}2", "txt": b"two"}]


def test_samples_are_members_of_one_basename_and_columns_their_extensions(tmp_path: Path) -> None:
    names = {
        "a/1.png": b"p1",
        "a/1.seg.PNG": b"s1",
        "noextension": b"",
        "a/.hidden.png": b"",
        "a/2.png": b"p2",
        "b/2.png": b"p3",
        "b/2.cls": b"7",
    }
    assert rows(tmp_path, packed(names)) == [
        {"__key__": "a/1", "png": b"p1", "seg.png": b"s1", "cls": None},
        {"__key__": "a/2", "png": b"p2", "seg.png": None, "cls": None},
        {"__key__": "b/2", "png": b"p3", "seg.png": None, "cls": b"7"},
    ]


def test_folders_are_passed_over(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        add_member(archive, "a/1.txt", b"one")
    assert rows(tmp_path, sink.getvalue()) == [{"__key__": "a/1", "txt": b"one"}]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.GNUTYPE_SPARSE])
def test_links_and_the_like_are_refused(tmp_path: Path, kind: bytes) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        add_member(archive, "1.txt", b"one")
        link = tarfile.TarInfo("2.txt")
        link.type, link.linkname = kind, "1.txt"
        archive.addfile(link)
    with pytest.raises(DataDamaged, match=r"'2\.txt' is of kind"):
        rows(tmp_path, sink.getvalue())


def test_a_sample_with_two_members_of_one_extension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDamaged, match=r"sample '1' has 'txt' twice"):
        rows(tmp_path, packed({"1.txt": b"", "1.TXT": b""}))


def test_archives_that_were_joined_are_refused(tmp_path: Path) -> None:
    one = packed({"1.txt": b"one"})
    with pytest.raises(DataDamaged, match="follows its end mark"):
        rows(tmp_path, one + one)


def test_a_header_cannot_claim_more_than_there_is(tmp_path: Path) -> None:
    data = bytearray(packed({"1.txt": b"one"}, tarfile.GNU_FORMAT))
    data[124:136] = b"\x80" + (1 << 60).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with pytest.raises(DataDamaged, match="should end at byte"):
        rows(tmp_path, bytes(data))
