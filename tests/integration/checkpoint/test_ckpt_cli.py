"""`strata ckpt` on S3: the same commands, with a bucket in place of a folder."""

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch

from strata import CheckpointManager, CheckpointReader
from tests.e2e.telling import strata_here
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, Server
from tests.unit.checkpoint.states import assert_same

pytestmark = pytest.mark.xdist_group("seaweedfs")

FROZEN = torch.randn(9 << 20 >> 2)


@pytest.fixture
def s3_url(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", S3_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"


def ckpt(*arguments: str | Path, code: int = 0) -> str:
    told = strata_here("ckpt", *arguments)
    assert told.returncode == code, told.stderr.decode()
    return told.stdout.decode()


def document(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(ckpt(*arguments, "--json", code=code))


def state(step: int) -> dict[str, Any]:
    return {"frozen": FROZEN, "w": torch.full((100,), step), "step": step}


def test_there_and_back_again(s3_url: str, tmp_path: Path) -> None:
    with CheckpointManager(s3_url, job_id="gpt", incremental=True) as manager:
        for step in (1, 2):
            manager.save(state(step), step=step)
        manager.save(b"bytes", step=3)
    job = f"{s3_url}/gpt/checkpoints"
    found = document("ls", s3_url)
    assert (found["url"], [each["referred_bytes"] > 0 for each in found["checkpoints"]]) == (job, [False, True, False])
    assert document("show", f"{job}/step_2")["tensors"][0]["files"][0].startswith("step_1/")
    assert document("diff", s3_url, "1", "2")["totals"]["same"]["tensors"] == 1
    assert document("verify", "--all", s3_url)["ok"]

    ckpt("cp", "--all", s3_url, tmp_path / "local")
    ckpt("cp", tmp_path / "local", f"{s3_url}-again", "--step", "2")
    assert not document("diff", f"{job}/step_2", f"{s3_url}-again")["differ"]
    with CheckpointReader(f"{s3_url}-again", job_id="gpt") as reader:
        assert_same(reader.load(2), state(2))
    with CheckpointReader(tmp_path / "local", job_id="gpt") as reader:
        assert reader.load() == b"bytes"

    ckpt("export", "safetensors", s3_url, f"{s3_url}-out/w.safetensors", "--step", "2")
    ckpt("import", f"{s3_url}-out/w.safetensors", f"{s3_url}-again", "--step", "7")
    with CheckpointReader(f"{s3_url}-again", job_id="gpt") as reader:
        assert_same(reader.load(7)["frozen"], FROZEN)

    ckpt("pin", s3_url, "3")
    ckpt("rm", "--yes", s3_url, "1")
    after = document("ls", s3_url)["checkpoints"]
    assert [(each["step"], each["pinned"]) for each in after] == [(2, False), (3, True)]
    assert document("verify", "--all", s3_url)["ok"]  # what the second refers to is still there
