"""Today's version reads what every released version wrote: checkpoints, indexes and journals."""

import json
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strata import CheckpointManager, Training, data
from strata.coordinator.journal import Journal
from strata.coordinator.replay import replayed
from strata.core.machine import Machine
from strata.data import load_index
from strata.torch import TrainState
from tests.golden.description import JOB, describe_index, missing_from, steps_in

HERE = Path(__file__).parent
RELEASES = sorted(folder.name for folder in HERE.iterdir() if folder.is_dir() and folder.name[0].isdigit())
KINDS = ("bytes", "tree", "incremental", "lineages", "ranks", "tiers", "training", "index", "journal")


class Golden:
    """The files that one release wrote for one kind, unpacked."""

    def __init__(self, release: str, kind: str, folder: Path) -> None:
        with zipfile.ZipFile(HERE / release / f"{kind}.zip") as archive:
            archive.extractall(folder)
        self.folder = folder
        self.expected: Any = json.loads((folder / "expected.json").read_text("utf-8"))

    def check(self, found: Any) -> None:
        assert missing_from(self.expected, json.loads(json.dumps(found))) == []


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def golden(release: str, request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return Golden(release, request.param, tmp_path)


def of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("golden", kinds, indirect=True)


def test_every_release_has_a_file_of_each_kind(release: str) -> None:
    assert sorted(path.stem for path in (HERE / release).iterdir()) == sorted(KINDS)


@of("bytes", "tree", "incremental", "lineages")
def test_checkpoints_are_read(golden: Golden) -> None:
    golden.check(steps_in(golden.folder))


@of("incremental", "lineages")
def test_a_job_goes_on_from_an_old_checkpoint(golden: Golden) -> None:
    with CheckpointManager(golden.folder, job_id=JOB, incremental=True) as manager:
        manager.save(manager.load(), step=100)
    found = steps_in(golden.folder)
    assert found["steps"]["100"]["state"] == golden.expected["steps"][str(golden.expected["latest"])]["state"]
    assert missing_from(golden.expected["steps"], json.loads(json.dumps(found["steps"]))) == []


@of("lineages")
def test_a_pin_is_kept(golden: Golden) -> None:
    with CheckpointManager(golden.folder, job_id=JOB, keep_count=1) as manager:
        manager.save({}, step=100)
        manager.wait()
        assert manager.list_checkpoints() == [10, 100]


@of("ranks")
def test_a_checkpoint_of_two_ranks_is_read(golden: Golden) -> None:
    ranks = [steps_in(golden.folder, rank=rank) for rank in range(2)]
    found = {f"rank_{rank}": each["steps"]["4"]["state"] for rank, each in enumerate(ranks)}
    golden.check({"latest": ranks[0]["latest"], **found})


@of("tiers")
@pytest.mark.parametrize("local", ["local", "empty"])
def test_checkpoints_are_read_from_the_local_disk_and_without_it(golden: Golden, local: str) -> None:
    _move_the_remote(golden.folder)
    golden.check(steps_in(golden.folder / "remote", local=golden.folder / local))


def _move_the_remote(folder: Path) -> None:
    """The local tier names its remote storage by URL, and the writer's temporary folder is gone."""
    mark = folder / "local" / JOB / "checkpoints" / "far.json"
    tie = json.loads(mark.read_text("utf-8"))
    assert tie["far"].startswith("file:///")
    mark.write_text(json.dumps({**tie, "far": (folder / "remote").as_uri()}))


@of("training")
def test_a_run_goes_on_with_the_next_batch(golden: Golden) -> None:
    import torch

    expected_batch = golden.expected.pop("batch after step 12")
    checkpoints = golden.folder / "checkpoints"
    golden.check(steps_in(checkpoints))

    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainState(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10))
    loader = data.Loader(golden.folder / "rows.parquet", 64, format="parquet", output="torch", shuffle=True, seed=3)
    manager = CheckpointManager(checkpoints, job_id=JOB)
    with Training(state, loader, manager, epochs=2) as training:
        batch = next(iter(training))
        assert training.completed == 12
        assert batch["x"].tolist() == expected_batch


@of("index")
def test_indexes_are_read(golden: Golden) -> None:
    found = {}
    for name in golden.expected:
        found[name] = describe_index(load_index(golden.folder / f"{name}.index"))
    golden.check(found)


@of("journal")
def test_a_journal_is_replayed_from_its_beginning_and_from_its_snapshot(golden: Golden) -> None:
    journal = Journal(golden.folder / "state")
    try:
        batches = list(journal.batches())
        from_snapshot = replayed(journal)
    finally:
        journal.close()
    records = [record for batch in batches for record in batch.records]
    assert len(records) == golden.expected["records"]
    assert sorted({type(record).__name__ for record in records}) == golden.expected["kinds"]
    assert 0 < from_snapshot.fed < len(records)
    from_beginning = Machine()
    for record in records:
        from_beginning.apply(record)
    for machine in (from_snapshot.machine, from_beginning):
        state = msgspec.msgpack.decode(machine.snapshot())
        assert missing_from(golden.expected["state"], json.loads(msgspec.json.encode(state))) == []
