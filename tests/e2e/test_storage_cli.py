"""`strata storage` on local folders: its output and its exit code, and processes of it where only a process will do."""

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.telling import STRATA, lines, refusal, strata_here, terminated_while_it_copies

LARGE = os.urandom(1 << 20) * 40


storage = partial(strata_here, "storage")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "step_10").mkdir(parents=True)
    (folder / "step_10" / "model").write_bytes(LARGE)
    (folder / "notes.txt").write_bytes(b"hello\n")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- ls --------------------------------------------------------------------------------------------------------------


def test_ls_shows_objects_folders_and_a_total(run: Path) -> None:
    notes, folder, total = lines(storage("ls", run))
    assert notes.split()[:2] == ["6", "B"]
    assert notes.endswith("  notes.txt")
    assert folder.strip() == "step_10/"
    assert total.split("  ")[-1] == "in 1 object, 1 folder"


@pytest.mark.parametrize("flag", ["-r", "--recursive"])
def test_ls_goes_deep(run: Path, flag: str) -> None:
    told = lines(storage("ls", flag, run))
    assert [line.rpartition("  ")[2] for line in told] == ["notes.txt", "step_10/model", "in 2 objects"]
    assert "40.0 MiB" in told[1]


def test_ls_as_json_for_programs(run: Path) -> None:
    notes, folder = json.loads(storage("ls", "--json", run).stdout)
    assert (notes["path"], notes["size"]) == ("notes.txt", 6)
    assert notes["modified"].endswith("+00:00")
    assert folder == {"path": "step_10/", "size": None, "modified": None}
    assert len(json.loads(storage("ls", "--json", "-r", run).stdout)) == 2


@pytest.mark.parametrize("url", ["run/notes.txt", "./run/../run/notes.txt"])
def test_ls_of_one_object(run: Path, url: str) -> None:
    (entry,) = json.loads(storage("ls", "--json", url, cwd=run.parent).stdout)
    assert (entry["path"], entry["size"]) == ("notes.txt", 6)


def test_ls_takes_a_file_url_and_a_link_to_a_folder(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(run)
    for url in (f"file://{run}", f"{tmp_path}/elsewhere/link", f"{run}/"):
        assert "notes.txt" in storage("ls", url).stdout.decode()


def test_ls_of_nothing_is_an_error_and_of_an_empty_folder_is_not(tmp_path: Path) -> None:
    assert "there is nothing at" in refusal(storage("ls", tmp_path / "nope"))
    assert lines(storage("ls", f"{tmp_path}/")) == [f"{'0 B':>12}  in 0 objects"]
    assert json.loads(storage("ls", "--json", f"{tmp_path}/").stdout) == []


def test_ls_shows_names_that_would_change_the_terminal_harmlessly(tmp_path: Path) -> None:
    (tmp_path / "red\x1b[31m").write_bytes(b"")
    (tmp_path / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"")
    told = storage("ls", tmp_path).stdout.decode()
    assert r"red\x1b[31m" in told
    assert r"not-utf8-\udcff" in told
    assert len(json.loads(storage("ls", "--json", tmp_path).stdout)) == 2


# -- cat -------------------------------------------------------------------------------------------------------------


def test_cat_is_exact(run: Path) -> None:
    assert storage("cat", run / "notes.txt").stdout == b"hello\n"
    assert storage("cat", run / "step_10" / "model").stdout == LARGE


@pytest.mark.parametrize("command", [["cat", "step_10/model"], ["ls", "-r", "many"]])
def test_a_pipe_that_closes_early_is_no_accident(run: Path, command: list[str]) -> None:
    (run / "many").mkdir()
    for number in range(3000):
        (run / "many" / f"{'long' * 20}{number}").touch()
    with subprocess.Popen(
        [STRATA, "storage", *command], cwd=run, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout
            assert process.stderr
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(60) == 1
        finally:
            process.kill()


def test_cat_of_a_folder_or_of_nothing_is_refused(run: Path) -> None:
    assert "is a folder: name one object in it" in refusal(storage("cat", run))
    assert "there is nothing at" in refusal(storage("cat", run / "nope"))


# -- cp --------------------------------------------------------------------------------------------------------------


def test_cp_copies_one_object_to_a_name_or_into_a_folder(run: Path, tmp_path: Path) -> None:
    (summary,) = lines(storage("cp", run / "step_10" / "model", tmp_path / "copy"))
    assert summary.startswith("copied 1 object, 40.0 MiB in ")
    assert (tmp_path / "copy").read_bytes() == LARGE
    lines(storage("cp", run / "notes.txt", f"{tmp_path}/new/"))
    lines(storage("cp", run / "notes.txt", "new/again", cwd=tmp_path))
    assert files(tmp_path / "new") == {"notes.txt": b"hello\n", "again": b"hello\n"}


def test_cp_copies_a_folder_and_leaves_no_trace(run: Path, tmp_path: Path) -> None:
    told = storage("cp", "-r", run, tmp_path / "copy")
    assert lines(told)[0].startswith("copied 2 objects, 40.0 MiB in ")
    assert told.stderr == b""
    assert files(tmp_path / "copy") == files(run)
    lines(storage("cp", "-r", run, tmp_path / "copy"))  # as after an interruption: not beside what is there
    assert files(tmp_path / "copy") == files(run)
    lines(storage("cp", "-r", run, f"{tmp_path}/copy/"))
    assert files(tmp_path / "copy" / "run") == files(run)


def test_cp_refuses_what_makes_no_sense(run: Path, tmp_path: Path) -> None:
    assert "is a folder: -r" in refusal(storage("cp", run, tmp_path / "copy"))
    assert "itself" in refusal(storage("cp", "-r", run, run / "inside"))
    assert "there is nothing at" in refusal(storage("cp", run / "nope", tmp_path / "copy"))
    assert "ftp:// is not a storage" in refusal(storage("cp", run / "notes.txt", "ftp://host/x"))
    assert "ends with this command" in refusal(storage("cp", run / "notes.txt", "memory://x"))
    assert "two slashes" in refusal(storage("cp", run / "notes.txt", "s3:/bucket/x", cwd=tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["run"]


# -- rm --------------------------------------------------------------------------------------------------------------


def test_rm_removes_one_object(run: Path) -> None:
    assert lines(storage("rm", run / "notes.txt")) == ["removed 1 object, 6 B"]
    assert set(files(run)) == {"step_10/model"}


def test_rm_asks_before_it_removes_a_folder(run: Path) -> None:
    for answer in (b"n\n", b""):
        told = storage("rm", "-r", run, answer=answer)
        assert told.returncode == 1
        assert "Remove 2 objects, 40.0 MiB from" in told.stderr.decode()
        assert set(files(run)) == {"notes.txt", "step_10/model"}
    assert lines(storage("rm", "-r", run, answer=b"y\n"))[0].strip() == "removed 2 objects, 40.0 MiB"
    assert not run.exists()


def test_rm_does_not_ask_when_told_so(run: Path) -> None:
    told = storage("rm", "-r", "--yes", run)
    assert lines(told) == ["removed 2 objects, 40.0 MiB"]
    assert told.stderr == b""
    assert not run.exists()


def test_rm_refuses_what_is_not_there_and_what_cannot_be_meant(run: Path) -> None:
    assert "there is nothing at" in refusal(storage("rm", run / "nope"))
    assert "there is nothing at" in refusal(storage("rm", "-r", "--yes", run / "nope"))
    assert "is a folder: -r" in refusal(storage("rm", run))
    assert "root of the filesystem" in refusal(storage("rm", "-r", "--yes", "/"))
    assert set(files(run)) == {"notes.txt", "step_10/model"}


def test_rm_does_not_follow_a_link_out_of_a_folder(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(run)
    assert "symbolic link" in refusal(storage("rm", "-r", "--yes", tmp_path / "elsewhere" / "link"))
    assert set(files(run)) == {"notes.txt", "step_10/model"}


# -- check -----------------------------------------------------------------------------------------------------------


def test_check_draws_what_it_finds(tmp_path: Path) -> None:
    told = lines(storage("check", tmp_path))
    assert told[0].startswith("✓ write")
    assert any("file locks" in line for line in told)
    assert told[-1] == "everything that Strata needs works here"
    assert os.listdir(tmp_path) == []


def test_check_ends_with_one_where_something_failed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    told = storage("check", tmp_path / "file" / "x")
    assert told.returncode == 1
    first, rest, verdict = told.stdout.decode().splitlines()
    assert first.startswith("✗ write")
    assert rest.startswith("! the rest")
    assert verdict == "1 step failed"
    assert told.stderr == b""


def test_check_as_json_for_programs(tmp_path: Path) -> None:
    told = json.loads(storage("check", "--json", tmp_path).stdout)
    assert told["ok"]
    assert all(finding["ok"] and finding["seconds"] >= 0 for finding in told["findings"])
    (tmp_path / "file").write_bytes(b"")
    failed = storage("check", "--json", tmp_path / "file" / "x")
    assert failed.returncode == 1
    assert not json.loads(failed.stdout)["ok"]


def test_a_url_that_is_none_is_refused() -> None:
    for command in ("ls", "cat", "rm", "check"):
        assert "ftp:// is not a storage" in refusal(storage(command, "ftp://host/x"))


# -- accidents -------------------------------------------------------------------------------------------------------


def test_output_that_cannot_be_written_is_told_in_one_line(run: Path) -> None:
    words: list[list[str | Path]] = [["ls", "-r", run], ["cat", run / "notes.txt"]]
    for command in words:
        with open("/dev/full", "wb") as full:
            told = subprocess.run(
                [STRATA, "storage", *command], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
            )
        assert (told.returncode, told.stderr) == (2, b"error: cannot write the output: No space left on device\n")


def test_a_copy_that_is_told_to_stop_says_so_and_leaves_nothing_half(run: Path, tmp_path: Path) -> None:
    with (run / "large").open("wb") as large:
        large.truncate(40 << 30)
    copy = tmp_path / "copy"
    told = terminated_while_it_copies("storage", "cp", run / "large", copy / "large", to=copy)
    assert (told.returncode, told.stderr) == (130, b"interrupted\n")
    assert files(tmp_path / "copy") == {}
