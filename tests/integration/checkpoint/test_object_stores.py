"""Checkpoints on servers: the same promises, with uploads in parts."""

import os
import secrets
from collections.abc import Iterator

import pytest
import torch

from strata import (
    BlockingStorage,
    CheckpointManager,
    CheckpointManagerConfig,
    CheckpointReader,
    S3Storage,
    StorageOptions,
)
from strata.errors import Superseded
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, Server
from tests.unit.checkpoint.states import assert_same

pytestmark = pytest.mark.xdist_group("seaweedfs")

OPTIONS = StorageOptions(part_bytes=8 << 20, concurrency=4, timeout_seconds=30, retries=3, retry_seconds=20)


@pytest.fixture
def storage(s3_server: Server) -> Iterator[S3Storage]:
    made = S3Storage(
        BUCKET,
        prefix=secrets.token_hex(8),
        endpoint=s3_server.endpoint,
        access_key_id=S3_KEY,
        secret_access_key=S3_SECRET,
        options=OPTIONS,
    )
    yield made
    BlockingStorage(made).close()


STATE = {"model": {f"layer{n}": torch.randn(1 << 20) for n in range(6)}, "step": 3, "bias": torch.ones(3).bfloat16()}


@pytest.mark.parametrize("memory", [None, 16 << 20], ids=["whole", "in turns"])
def test_a_tree_goes_up_and_comes_back(storage: S3Storage, memory: int | None) -> None:
    with CheckpointManager(storage, config=CheckpointManagerConfig(memory_bytes=memory)) as manager:
        manager.save(STATE, step=1)
        manager.save_async(STATE, step=2).result()
        assert manager.list_checkpoints() == [1, 2]
        assert_same(manager.load(), STATE)
        assert manager.verify(1) > 24 << 20
        into = {"bias": torch.zeros(3).bfloat16()}
        manager.load(into=into, strict=False)
        assert torch.equal(into["bias"], STATE["bias"])  # type: ignore[arg-type]


def test_bytes_go_up_and_come_back(storage: S3Storage) -> None:
    data = os.urandom(20 << 20)
    with CheckpointManager(storage, keep_count=1) as manager:
        manager.save(b"first", step=1)
        manager.save(data, step=2)
        manager.wait()
        assert manager.list_checkpoints() == [2]
        assert manager.load() == data
    found = [entry.path for entry in BlockingStorage(storage).list_all()]
    assert "default/checkpoints/step_2/model.bin" in found
    assert not [path for path in found if "step_1/" in path]


def test_of_two_writers_the_older_one_stops(storage: S3Storage) -> None:
    with CheckpointManager(storage) as old, CheckpointManager(storage) as new, CheckpointReader(storage) as reader:
        old.save({"who": "old"}, step=1)
        new.save({"who": "new"}, step=2)
        with pytest.raises(Superseded):
            old.save({"who": "old"}, step=3)
        assert reader.list_checkpoints() == [1, 2]
