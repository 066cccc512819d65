"""A training run that saves and loads with torch.distributed.checkpoint, started by torchrun: each way by one program.

A way is who saves and who loads: `dcp` is torch with Strata's plug-in, at once or in the background (`async`, in a
thread, and `process`), `torch` is torch alone, and `manager` a CheckpointManager of the same state.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from strata.checkpoint import CheckpointManager
from strata.integrations.dcp import StrataReader, StrataWriter
from tests.integration.ranks.train import loss_at, model_of, told


class Dying(StrataWriter):
    """Its process ends when its part is written, before anybody knows."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        super().write_data(plan, planner)
        os._exit(9)


class Training:
    def __init__(self, how: str) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model: nn.Module = model_of(how, self.world)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step = 0

    def train(self, until: int) -> dict[int, float]:
        losses = {}
        for step in range(self.step, until):
            loss = loss_at(step, self.model, self.rank, self.world)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            mean = loss.detach() / self.world
            dist.all_reduce(mean)
            losses[step] = float(mean)
        self.step = until
        return losses

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step, "notes": [1, "x", None]}

    def take(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]
        assert state["notes"] == [1, "x", None]

    def save(self, way: str, folder: Path) -> None:
        if way == "manager":
            with CheckpointManager(folder, rank=self.rank, world_size=self.world) as manager:
                manager.save(self.state(), self.step)
            return
        if way == "torch":
            dcp.save(self.state(), checkpoint_id=folder)
            return
        writer = StrataWriter(folder, step=self.step, keep_count=2)
        if way == "dcp":
            dcp.save(self.state(), storage_writer=writer)
            return
        kind = AsyncCheckpointerType.PROCESS if way == "process" else AsyncCheckpointerType.THREAD
        saving: Any = dcp.async_save(self.state(), storage_writer=writer, async_checkpointer_type=kind)
        saving.result()

    def load(self, way: str, folder: Path) -> None:
        state = self.state()
        if way == "dcp":
            dcp.load(state, storage_reader=StrataReader(folder))
        else:
            with CheckpointManager(folder, rank=self.rank, world_size=self.world) as manager:
                state = manager.load(into=state)
        self.take(state)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--how", default="fsdp")
    parser.add_argument("--save", nargs="*", default=[], help="ways, each to a folder of its own")
    parser.add_argument("--load", nargs="*", default=[], help="way:folder")
    parser.add_argument("--save-at", type=int, default=3)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--die-rank", type=int, default=-1)
    parser.add_argument("--tell", type=Path, required=True)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    training = Training(given.how)
    document: dict[str, Any] = {"loaded": {}, "losses": {}}
    for each in given.load:
        way, _, name = each.partition(":")
        training = Training(given.how)
        training.load(way, given.folder / name)
        document["loaded"][each] = [training.step, told(training.model, training.optimizer)]
    if given.save:
        document["losses"] |= training.train(given.save_at)
        document["saved"] = told(training.model, training.optimizer)
        for way in given.save:
            training.save(way, given.folder / way)
    if given.die_rank >= 0:
        training.step += 1
        kind = Dying if training.rank == given.die_rank else StrataWriter
        dcp.save(training.state(), storage_writer=kind(given.folder / "dcp", step=training.step))
    document["losses"] |= training.train(given.until)
    if training.rank == 0:
        given.tell.write_text(json.dumps(document))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
    # A thread of gloo's that lets go of its last tensor only when Python has ended would abort the process.
    os._exit(0)
