"""A local disk before a real object store: killed in the middle, full, and cut off."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from strata import (
    BlockingStorage,
    CheckpointManager,
    CheckpointManagerConfig,
    CheckpointReader,
    S3Storage,
    StorageOptions,
    StorageUnavailable,
)
from strata.checkpoint import tieredsaver
from strata.storage import StorageBackend
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, Server, s3_client
from tests.servers.proxy import Proxy, Request, proxied
from tests.unit.checkpoint.states import assert_same

pytestmark = pytest.mark.xdist_group("seaweedfs")

SIZE = 24 << 20
STATE = {"w": torch.arange(SIZE // 4, dtype=torch.int32), "step": 2}
IN_TIME = 60.0

PROGRAM = """
import sys, torch
from strata import CheckpointManager, S3Storage, StorageOptions
endpoint, prefix, near, key, secret, bucket = sys.argv[1:]
far = S3Storage(bucket, prefix=prefix, endpoint=endpoint, access_key_id=key, secret_access_key=secret,
                options=StorageOptions(part_bytes=5 << 20, concurrency=2))
manager = CheckpointManager(far, local=near)
manager.save({"w": torch.zeros(4), "step": 1}, step=1)
manager.wait()
manager.save({"w": torch.arange(6 << 20, dtype=torch.int32), "step": 2}, step=2)
print("committed", flush=True)
manager.wait()
print("uploaded", flush=True)
"""


@pytest.fixture
def proxy(s3_server: Server) -> Iterator[tuple[Proxy, str]]:
    with proxied(s3_server.endpoint) as found:
        yield found


def bucket_at(endpoint: str, prefix: str) -> S3Storage:
    options = StorageOptions(part_bytes=5 << 20, concurrency=2, timeout_seconds=10, retries=1, retry_seconds=2)
    return S3Storage(
        BUCKET, prefix=prefix, endpoint=endpoint, access_key_id=S3_KEY, secret_access_key=S3_SECRET, options=options
    )


def is_a_part(request: Request) -> bool:
    return "partNumber=3" in request.path


def is_the_commit(request: Request) -> bool:
    return request.method == "PUT" and "step_2/metadata.json" in request.path


@pytest.mark.parametrize("at", [is_a_part, is_the_commit])
def test_a_process_that_is_killed_while_it_uploads(proxy: tuple[Proxy, str], at: object, tmp_path: Path) -> None:
    """The next one goes on; what had arrived whole is not sent again."""
    server, endpoint = proxy
    prefix = secrets.token_hex(8)
    server.rule = lambda request: "hang" if at(request) else None  # type: ignore[operator]
    arguments = [endpoint, prefix, str(tmp_path), S3_KEY, S3_SECRET, BUCKET]
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)
    waiting = CheckpointReader(bucket_at(endpoint, prefix))
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "committed\n"
        while not any(at(request) for request in server.requests):  # type: ignore[operator]
            assert child.poll() is None
            assert waiting.list_checkpoints() == [1]
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate(timeout=IN_TIME)
        server.unhang.set()
    assert waiting.list_checkpoints() == [1]
    waiting.close()
    server.rule, sent = (lambda _: None), len(server.requests)
    far = bucket_at(endpoint, prefix)
    with CheckpointManager(far, local=tmp_path) as manager:
        assert_same(manager.load(), STATE)
        manager.wait()
        assert [(each.step, each.local, each.remote) for each in manager.tiers().steps] == [
            (1, True, True),
            (2, True, True),
        ]
        parts = sum("partNumber=" in request.path for request in server.requests[sent:])
        assert parts == (0 if at is is_the_commit else 5)
        manager.save(STATE | {"step": 3}, step=3)
    with CheckpointReader(far) as reader:
        assert reader.list_checkpoints() == [1, 2, 3]
        assert_same(reader.load(2), STATE)
        assert reader.verify() > SIZE
    BlockingStorage(far).close()


def test_as_it_is_written_in_the_documents(s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": S3_KEY,
        "AWS_SECRET_ACCESS_KEY": S3_SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/{secrets.token_hex(8)}"
    with CheckpointManager(url, local=tmp_path / "nvme", keep_count=2) as manager:
        handles = [manager.save_async(STATE | {"step": step}, step=step) for step in (1, 2, 3)]
        handles[-1].wait_uploaded()
        manager.wait()
        assert manager.list_checkpoints() == [2, 3]
    with CheckpointReader(url, local=tmp_path / "empty") as reader:
        assert_same(reader.load(), STATE | {"step": 3})
        assert not (tmp_path / "empty").exists()


def test_an_object_store_that_does_not_answer_holds_up_nobody(proxy: tuple[Proxy, str], tmp_path: Path) -> None:
    server, endpoint = proxy
    far = bucket_at(endpoint, secrets.token_hex(8))
    with CheckpointManager(far, local=tmp_path) as manager:
        manager.save(b"first", step=1)
        manager.wait()
        server.rule = lambda _: "cut"
        for step in (2, 3):
            manager.save(STATE, step=step)
        with pytest.raises(StorageUnavailable, match="whole in file:///"):
            manager.wait()
        assert manager.tiers().behind == 2
        server.rule = lambda _: None
        manager.wait()
        assert manager.tiers().behind == 0
    names = {
        entry["Key"].split("/")[3]
        for entry in s3_client(endpoint).list_objects_v2(Bucket=BUCKET, Prefix=far.url.split("/")[-1])["Contents"]
    }
    assert names == {"lineage.json", "step_1", "step_2", "step_3"}
    BlockingStorage(far).close()


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"missing component: the right to mount ({done.stderr.strip()})")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def state(step: int) -> dict[str, object]:
    return {"w": np.full(8 << 20, step, np.uint8), "step": step}


def local_steps(manager: CheckpointManager) -> list[int]:
    return [each.step for each in manager.tiers().steps if each.local]


def test_a_disk_that_is_full_makes_room(small_disk: Path, tmp_path: Path) -> None:
    config = CheckpointManagerConfig(local_keep=10)
    with CheckpointManager(tmp_path / "far", local=small_disk, config=config) as manager:
        for step in range(1, 8):
            report = manager.save(state(step), step=step)
            assert report.notes == []
            manager.wait()
        assert manager.list_checkpoints() == [1, 2, 3, 4, 5, 6, 7]
        assert local_steps(manager) in ([4, 5, 6, 7], [5, 6, 7])
        for step in range(1, 8):
            assert_same(manager.load(step), state(step))


def test_a_disk_that_can_make_no_room_is_passed_by(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(33 << 20))
    with CheckpointManager(tmp_path / "far", local=small_disk) as manager:
        report = manager.save(state(1), step=1)
        assert "has room for 7.0 MiB, and 9.1 MiB are needed" in report.notes[0]
        manager.save({"small": 2}, step=2)
        manager.wait()
        assert local_steps(manager) == [2]
        ballast.unlink()
        manager.save(state(3), step=3)
        manager.wait()
        assert local_steps(manager) == [2, 3]
        for step in (1, 3):
            assert_same(manager.load(step), state(step))


@pytest.mark.parametrize("kind", ["tree", "bytes"])
def test_a_disk_that_fills_up_in_the_middle_of_a_save(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def nobody_knows(storage: StorageBackend) -> None:
        return None

    def made(step: int) -> object:
        return state(step) if kind == "tree" else bytes([step]) * (8 << 20)

    monkeypatch.setattr(tieredsaver, "free_bytes", nobody_knows)
    with CheckpointManager(tmp_path / "far", local=small_disk) as manager:
        manager.save(made(1), step=1)
        manager.wait()
        (small_disk / "ballast").write_bytes(bytes(28 << 20))
        report = manager.save(made(2), step=2)
        assert "No space left on device" in report.notes[-1]
        assert not list(small_disk.glob("default/checkpoints/step_2/*"))
        assert not list(small_disk.glob(".strata-tmp/*.part"))
        assert_same(manager.load(), made(2))
        assert [(each.step, each.local, each.remote) for each in manager.tiers().steps] == [
            (1, True, True),
            (2, False, True),
        ]
