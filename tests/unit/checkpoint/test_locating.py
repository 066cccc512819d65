"""Which job and which checkpoint a URL means."""

import os
from pathlib import Path

import pytest

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.locating import Place, find_place, jobs_in, pointed_at
from strata.checkpoint.store import Folder
from strata.errors import InvalidInput, NotFound
from strata.storage import LocalStorage


def place(url: str | Path, job: str | None = None, usual: str | None = None) -> Place:
    return background.run(find_place(os.fspath(url), job, usual))


def save(root: Path, *jobs: str) -> Path:
    for job in jobs:
        with CheckpointManager(root, job_id=job) as manager:
            manager.save({"who": job}, step=7)
    return root


def test_a_root_with_one_job_is_that_job(tmp_path: Path) -> None:
    assert place(save(tmp_path, "gpt")) == Place(str(tmp_path), "gpt")
    assert place(f"file://{tmp_path}").job == "gpt"


def test_of_several_jobs_one_must_be_said(tmp_path: Path) -> None:
    save(tmp_path, "gpt", "bert")
    with pytest.raises(InvalidInput, match=r"several jobs, bert, gpt: say which, with --job"):
        place(tmp_path)
    assert place(tmp_path, "bert").job == "bert"
    assert place(tmp_path, None, "gpt").job == "gpt"
    assert place(tmp_path, "bert", "gpt").job == "bert"


def test_a_job_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    save(tmp_path, "gpt")
    with pytest.raises(NotFound, match=r"no checkpoints of job bert at .*; there are some of gpt"):
        place(tmp_path, "bert")
    with pytest.raises(NotFound, match=r"no checkpoints of job bert"):
        place(tmp_path, None, "bert")
    with pytest.raises(NotFound, match="there are no checkpoints at"):
        place(tmp_path / "nope")
    with pytest.raises(InvalidInput, match="not a valid id"):
        place(tmp_path, "../gpt")


@pytest.mark.parametrize("below", ["gpt", "gpt/checkpoints", "gpt/checkpoints/"])
def test_a_url_may_point_at_the_job(tmp_path: Path, below: str) -> None:
    save(tmp_path, "gpt", "bert")
    assert place(f"{tmp_path}/{below}") == Place(str(tmp_path), "gpt")
    assert place(f"{tmp_path}/{below}", "gpt", "bert").job == "gpt"
    with pytest.raises(InvalidInput, match="is of job gpt, and not of bert"):
        place(f"{tmp_path}/{below}", "bert")


def test_a_url_may_point_at_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "gpt", "bert")
    assert place(tmp_path / "gpt/checkpoints/step_7") == Place(str(tmp_path), "gpt", Folder(7))
    assert place(tmp_path / "gpt/checkpoints/step_7-3").folder == Folder(7, 3)
    monkeypatch.chdir(tmp_path / "gpt/checkpoints")
    assert place("step_7") == Place(str(tmp_path), "gpt", Folder(7))
    assert place(".") == Place(str(tmp_path), "gpt")


def test_a_root_may_be_called_checkpoints_itself(tmp_path: Path) -> None:
    root = save(tmp_path / "project" / "checkpoints", "gpt")
    assert place(root) == Place(str(root), "gpt")
    assert place(root / "gpt") == Place(str(root), "gpt")
    assert place(root / "gpt" / "checkpoints").root == str(root)


def test_what_has_no_checkpoints_is_no_job(tmp_path: Path) -> None:
    save(tmp_path, "gpt")
    (tmp_path / "imagenet" / "shards").mkdir(parents=True)
    (tmp_path / "imagenet" / "shards" / "0").touch()
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    assert background.run(jobs_in(LocalStorage(tmp_path))) == ["gpt"]


def test_buckets_are_taken_apart_without_being_asked() -> None:
    found = background.run(pointed_at("s3://bucket/models/gpt/checkpoints/step_5/"))
    assert found == Place("s3://bucket/models", "gpt", Folder(5))
    found = background.run(pointed_at("s3://bucket/gpt/checkpoints/step_5-2"))
    assert found == Place("s3://bucket", "gpt", Folder(5, 2))
