"""What a run left to defaults is said where two such runs meet: in the log at the start, and in the error."""

from pathlib import Path

import pytest

from strata import CheckpointManager
from strata.checkpoint import defaults
from strata.cli import ckpt_look
from strata.errors import Superseded
from strata.storage import MemoryStorage, urls


@pytest.fixture(autouse=True)
def _nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOB_ID", "STORAGE_BACKEND", "LOCAL_STORAGE_PATH", "CHECKPOINT_BUCKET"):
        monkeypatch.delenv(f"STRATA_{name}", raising=False)
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(defaults, "told_places", set())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def test_the_default_job_is_told_once_for_each_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with CheckpointManager(tmp_path):
            pass
    (told,) = warnings(caplog)
    assert "no job_id was given" in told
    assert str(tmp_path) in told
    with CheckpointManager(tmp_path / "other"):
        assert len(warnings(caplog)) == 2


def test_the_default_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(urls, "DEFAULT_PATH", str(tmp_path))
    with CheckpointManager(job_id="llama"):
        (told,) = warnings(caplog)
    assert "the default folder" in told


def test_a_run_that_says_both_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(tmp_path, job_id="llama"), CheckpointManager(MemoryStorage()):
        pass
    monkeypatch.setenv("STRATA_JOB_ID", "llama")
    monkeypatch.setenv("LOCAL_STORAGE_PATH", str(tmp_path))
    with CheckpointManager():
        assert warnings(caplog) == []


@pytest.mark.parametrize("job", ["default", "llama"])
def test_the_superseded_run_is_told_of_the_default_job(tmp_path: Path, job: str) -> None:
    with CheckpointManager(tmp_path, job_id=job) as first, CheckpointManager(tmp_path, job_id=job) as second:
        first.save({"x": 1}, step=1)
        second.save({"x": 2}, step=2)
        with pytest.raises(Superseded) as refusal:
            first.save({"x": 1}, step=3)
    assert ("All runs without a job_id" in str(refusal.value)) == (job == "default")


@pytest.mark.parametrize("job", ["default", "llama"])
def test_a_listing_says_whose_the_default_job_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str) -> None:
    with CheckpointManager(tmp_path, job_id=job) as manager:
        manager.save({"x": 1}, step=1)
    ckpt_look.ls(str(tmp_path))
    assert ("all runs without a job_id share" in capsys.readouterr().err) == (job == "default")
