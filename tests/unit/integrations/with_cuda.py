"""What lies on a GPU saved and loaded with torch.distributed.checkpoint, as a program for a machine that has one:
`python -m tests.unit.integrations.with_cuda`."""

import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from strata import CheckpointManagerConfig
from strata.checkpoint import CheckpointReader
from strata.integrations.dcp import StrataReader, StrataWriter
from strata.storage import LocalStorage, MemoryStorage, StorageBackend
from tests.unit.checkpoint.states import assert_same
from tests.unit.integrations.ranks import columns, load_together, rows, save_together


def state_on(device: str) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(7)
    whole = torch.randn(300, 1 << 18, device=device, generator=generator)
    return {
        "large": whole,
        "turned": whole[:100, :100].t(),
        "half": whole[0].bfloat16(),
        "number": torch.tensor(3, device=device),
        "host": torch.ones(5),
        "step": 3,
    }


def goes_there_and_back(device: str, storage: StorageBackend, config: CheckpointManagerConfig) -> None:
    state = state_on(device)
    dcp.save(state, storage_writer=StrataWriter(storage, step=1, config=config), no_dist=True)
    saving: Any = dcp.async_save(state, storage_writer=StrataWriter(storage, step=2, config=config), no_dist=True)
    saving.result()
    on_host = {key: each.cpu() if isinstance(each, torch.Tensor) else each for key, each in state.items()}
    with CheckpointReader(storage) as reader:
        for step in (1, 2):
            found = reader.load(step)
            assert_same({key: found[key] for key in state}, on_host)
    for where in (device, "cpu"):
        into: Any = {key: torch.zeros_like(each, device=where) for key, each in state.items() if key != "step"}
        into["step"] = 0
        dcp.load(into, storage_reader=StrataReader(storage), no_dist=True)
        assert into["large"].device.type == where
        assert_same({key: each.cpu() for key, each in into.items() if key != "step"} | {"step": 3}, on_host)


def ranks_share_it(device: str) -> None:
    storage, whole = MemoryStorage(), torch.randn(50, 60, device=device)
    states = [{"rows": rows(whole, rank, 3), "columns": columns(whole, rank, 3)} for rank in range(3)]
    save_together(states, [StrataWriter(storage, step=1) for _ in states])
    empty = torch.zeros_like(whole)
    into = [{"rows": columns(empty, rank, 2), "columns": rows(empty, rank, 2)} for rank in range(2)]
    load_together(into, [StrataReader(storage) for _ in into])
    for rank, found in enumerate(into):
        assert torch.equal(found["rows"].part, columns(whole, rank, 2).part)
        assert torch.equal(found["columns"].part, rows(whole, rank, 2).part)


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    warnings.filterwarnings("ignore", message="torch.distributed is")
    with tempfile.TemporaryDirectory() as folder:
        for memory in (64 << 20, 1 << 30):  # in turns, and all at once
            goes_there_and_back(where, LocalStorage(f"{folder}/{memory}"), CheckpointManagerConfig(memory_bytes=memory))
    ranks_share_it(where)
    print(f"the same from and to {where}")
