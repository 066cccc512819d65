"""Ray Train and Strata: two workers of a real Ray on the loopback, one of which is lost on the way."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strata import (
    CheckpointManager,
    CheckpointReader,
    InvalidInput,
    MemoryStorage,
    NotFound,
    StorageError,
    TrainingOrchestrator,
)
from strata.testing import FaultyStorage
from strata.testing.faulty import Faults
from tests.integration.integrations.sameness import assert_same

pytest.importorskip("ray.train")

from strata.integrations import ray as integration

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def run_with_ray(program: str, folder: Path, *more: str) -> str:
    """Gives what it printed."""
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT, ROOT / "examples")))
    told = subprocess.run(
        [sys.executable, HERE / program, folder, *more],
        env={**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    return told.stdout


def went_on_from(folder: Path, *runs: str) -> dict[str, int]:
    """Each run in a folder of its name, one after the other, on one cluster."""
    found: dict[str, int] = json.loads(run_with_ray("ray_runs.py", folder, *runs).splitlines()[-1])
    return found


def saved(folder: Path) -> CheckpointReader:
    return CheckpointReader(folder / "strata", job_id="linear")


@pytest.mark.long
def test_when_a_worker_dies_all_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    went_on = went_on_from(tmp_path, "dies")
    assert went_on["dies"] in (3, 6)  # by whether the latter was committed when the worker died
    reader = saved(tmp_path / "dies")
    assert reader.list_checkpoints() == [9, 12]
    assert reader.describe().world_size == 2
    notes = [json.loads(each.read_bytes()) for each in (tmp_path / "dies" / "ray").rglob("strata.json")]
    assert max(note["step"] for note in notes) == 12
    assert {note["url"] for note in notes} == {reader.url}


@pytest.mark.long
def test_a_run_that_lost_a_worker_comes_to_the_same_parameters_as_one_that_did_not(tmp_path: Path) -> None:
    went_on = went_on_from(tmp_path, "whole", "dies")
    assert went_on["whole"] == 0 < went_on["dies"]
    whole, dies = saved(tmp_path / "whole"), saved(tmp_path / "dies")
    for part in ("model", "optimizer"):
        assert_same(whole.load(12)[part], dies.load(12)[part])


@pytest.mark.long
def test_the_place_of_a_worker_is_what_ray_says_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    run_with_ray("ray_places.py", tmp_path)
    assert [json.loads((tmp_path / str(rank)).read_text("utf-8")) for rank in range(2)] == [
        [[0, 2], [7, 9]],
        [[1, 2], [7, 9]],
    ]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, (None, None)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"STRATA_RANK": "1", "STRATA_WORLD_SIZE": "2"}, (1, 2)),
    ],
)
def test_who_has_only_imported_ray_is_who_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], found: tuple[int | None, int | None]
) -> None:
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert TrainingOrchestrator.from_env().who[2:] == found


# -- without a cluster: what a worker is told by Ray is said here ----------------------------------------------------


class Rank0:
    """Stands where Ray's functions stand in the module: one worker, which keeps what it reports."""

    def __init__(self, checkpoint: Any = None) -> None:
        self.checkpoint, self.told = checkpoint, list[tuple[Any, Any]]()
        self.Checkpoint = integration.train.Checkpoint

    def get_context(self) -> Any:
        names = {"get_experiment_name": "a run/of mine", "get_world_rank": 0, "get_world_size": 1}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in names.items()})

    def get_checkpoint(self) -> Any:
        return self.checkpoint

    def report(self, metrics: Any, checkpoint: Any = None) -> None:
        self.told.append((metrics, None if checkpoint is None else integration.note_of(checkpoint)))


@pytest.fixture
def rank0(monkeypatch: pytest.MonkeyPatch) -> Rank0:
    stand_in = Rank0()
    monkeypatch.setattr(integration, "train", stand_in)
    monkeypatch.setattr(integration, "broadcast_from_rank_zero", lambda value: value)
    return stand_in


def noted(folder: Path, text: str) -> Any:
    folder.mkdir()
    (folder / "strata.json").write_text(text)
    return integration.train.Checkpoint.from_directory(folder)


def test_ray_is_told_of_what_is_committed_and_once(tmp_path: Path, rank0: Rank0) -> None:
    with integration.from_ray_context(tmp_path) as manager:
        assert manager.url.endswith("/a-run-of-mine/checkpoints")
        assert integration.resume_step(manager) is None
        integration.report({"loss": 3.0}, manager, wait=True)
        manager.save_async({"weights": torch.ones(2)}, step=5)
        integration.report({"loss": 2.0}, manager, wait=True)
        integration.report({"loss": 1.0}, manager)
        assert [note and note.step for _, note in rank0.told] == [None, 5, None]
        assert [metrics["loss"] for metrics, _ in rank0.told] == [3.0, 2.0, 1.0]
        assert integration.resume_step(manager) == 5


def test_ray_is_not_told_of_what_is_still_being_written(rank0: Rank0) -> None:
    storage = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0))
    with integration.from_ray_context(storage) as manager:
        manager.save_async({"weights": torch.ones(2)}, step=5)
        integration.report({"loss": 2.0}, manager)
        storage.release()
        integration.report({"loss": 1.0}, manager, wait=True)
    assert [note and note.step for _, note in rank0.told] == [None, 5]


def test_a_note_of_another_place_or_of_nothing_is_refused(tmp_path: Path, rank0: Rank0) -> None:
    with integration.from_ray_context(tmp_path / "root") as manager:
        rank0.checkpoint = noted(tmp_path / "elsewhere", '{"url": "s3://other/job/checkpoints", "step": 5}')
        with pytest.raises(InvalidInput, match="Ray goes on from step 5 in s3://other"):
            integration.resume_step(manager)
        rank0.checkpoint = noted(tmp_path / "lost", json.dumps({"url": manager.url, "step": 5}))
        with pytest.raises(NotFound, match="no checkpoint any more"):
            integration.resume_step(manager)
        rank0.checkpoint = noted(tmp_path / "damaged", '{"url": 7}')
        with pytest.raises(InvalidInput, match="does not say which step"):
            integration.resume_step(manager)
        (tmp_path / "plain").mkdir()
        rank0.checkpoint = integration.train.Checkpoint.from_directory(tmp_path / "plain")
        with pytest.raises(InvalidInput, match="is not one that strata"):
            integration.resume_step(manager)


def test_a_failed_save_is_raised_and_not_reported(rank0: Rank0) -> None:
    with integration.from_ray_context(FaultyStorage(MemoryStorage(), faults=Faults(before=1.0))) as manager:
        manager.save_async({"weights": torch.ones(2)}, step=5)
        with pytest.raises(StorageError):
            integration.report({"loss": 2.0}, manager, wait=True)
    assert rank0.told == []


def test_a_folder_that_is_another_for_each_worker_is_refused() -> None:
    with pytest.raises(InvalidInput, match="another folder for each"):
        integration.from_ray_context("checkpoints")


def test_after_a_rollback_the_latest_counts(tmp_path: Path, rank0: Rank0) -> None:
    with CheckpointManager(tmp_path / "root", job_id="gpt") as manager:
        manager.save({"weights": torch.ones(2)}, step=3)
        rank0.checkpoint = noted(tmp_path / "note", json.dumps({"url": manager.url, "step": 5}))
        assert integration.resume_step(manager) == 3
