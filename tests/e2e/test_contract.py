"""Both programs of the contract's first section, as they are written there, with a real coordinator and a real S3.

Only the coordinator's port and the folder of the data are others; what the programs say of names, order of arguments
and numbers is theirs.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dtruntime import CheckpointReader
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, ComponentMissing, s3_client, seaweedfs

SAMPLES, SHARD = 1_281_167, 10_000

GIVEN = """
import os
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
model, steps_per_epoch = {"w": 1.5}, 2_500
def serialize_model(model):
    return f"{model} of rank {RANK}".encode()

import strata
get_shard = strata.DatasetRegistry.get_shard
def told(*given, **named):
    found = get_shard(*given, **named)
    print(*found, sep="\\n")
    return found
strata.DatasetRegistry.get_shard = told
"""
"""What a user has beside it; and what it is told of its shards is printed."""

TRAINING = """
import asyncio
from dtruntime import DatasetRegistry, CheckpointManager, TrainingOrchestrator

async def main():
    orchestrator = TrainingOrchestrator(worker_id=f"worker-{RANK}", coordinator_url="http://localhost:50051",
                                        world_size=WORLD_SIZE, rank=RANK)
    await orchestrator.register_worker(ip="192.168.1.10", port=8080)
    registry = DatasetRegistry("http://localhost:50051")
    registry.register(dataset_id="imagenet", path="/data/imagenet", format="parquet",
                      total_samples=1_281_167, shard_size=10_000, shuffle=True)
    shard_files = registry.get_shard("imagenet", worker_rank=RANK, epoch=0)
    checkpoint_mgr = CheckpointManager("/checkpoints", backend="s3")
    for step in range(10_000):
        if step % 1000 == 0:
            await checkpoint_mgr.save_async(serialize_model(model), step=step)
        if step % steps_per_epoch == 0:
            await orchestrator.wait_barrier(f"epoch_{step // steps_per_epoch}")

asyncio.run(main())
"""

SAVING = """
from strata import DatasetRegistry, CheckpointManager
ckpt_manager = CheckpointManager(path="s3://my-bucket/models", keep_count=5)
ckpt_manager.save(model_state_bytes, step=5000, epoch=2)
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which S3 is a server of this machine."""
    try:
        with seaweedfs(tmp_path_factory.mktemp("s3")) as server:
            s3_client(server.endpoint).create_bucket(Bucket="my-bucket")
            keys = {"AWS_ACCESS_KEY_ID": S3_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET}
            yield {"AWS_ENDPOINT_URL": server.endpoint, "CHECKPOINT_BUCKET": BUCKET, **keys}
    except ComponentMissing as missing:
        pytest.skip(f"missing component: {missing}")


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """As many samples as the contract says, a shard to a file, each of a few hundred bytes."""
    folder = tmp_path / "imagenet"
    folder.mkdir()
    for start in range(0, SAMPLES, SHARD):
        zeros = pa.table({"label": np.zeros(min(SHARD, SAMPLES - start), np.int8)})
        pq.write_table(zeros, folder / f"{start:07}.parquet")
    return folder


def started(program: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ended(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """What each said."""
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes), [text[-2000:] for text in said]
        return said
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.communicate()


def test_the_training_program(
    s3: dict[str, str], client: Client, running: CoordinatorProcess, imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = running.address.rpartition(":")[2]
    program = GIVEN + TRAINING.replace(":50051", f":{port}").replace("/data/imagenet", str(imagenet))
    said = ended([started(program, RANK=str(rank), WORLD_SIZE="2", **s3) for rank in range(2)])
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    with CheckpointReader("/checkpoints", backend="s3") as reader:
        assert reader.list_checkpoints() == list(range(0, 10_000, 1000))
        assert reader.load() == b"{'w': 1.5} of rank 0"
    with CheckpointReader(f"s3://{BUCKET}/checkpoints", rank=1) as reader:
        assert reader.load(5000) == b"{'w': 1.5} of rank 1"
    files = [set(each.splitlines()) for each in said]
    assert files[0] | files[1] == set(map(str, imagenet.iterdir()))
    assert not files[0] & files[1]
    assert len(client.call("ListCheckpoints").checkpoints) == 10


@pytest.mark.parametrize("coordinated", [False, True], ids=["alone", "in a job"])
def test_the_saving_program(
    s3: dict[str, str], running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch, coordinated: bool
) -> None:
    where = {"STRATA_JOB_ID": f"saving-{coordinated}"} | ({"COORDINATOR_URL": running.address} if coordinated else {})
    ended([started("model_state_bytes = bytes(range(256)) * 1000" + SAVING, **s3, **where)])
    for name, value in (s3 | where).items():
        monkeypatch.setenv(name, value)
    with CheckpointReader("s3://my-bucket/models") as reader:
        assert reader.load(5000) == bytes(range(256)) * 1000
        assert reader.describe(5000).epoch == 2
