"""Two processes of Lightning's own, over gloo on the loopback: run by `test_lightning`, and by Lightning again."""

import sys
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from strata.integrations.lightning import StrataCheckpointIO
from tests.integration.integrations.modules import Small, batches, trainer


def fitted(strategy: str, root: Path, epochs: int, tickets: Path, **more: Any) -> Any:
    callback = ModelCheckpoint(tickets, save_top_k=-1, save_last="link")
    trained = trainer(epochs, StrataCheckpointIO(root), [callback], devices=2, strategy=strategy)
    trained.fit(Small(), batches(), **more)
    return trained


def main(folder: Path, strategy: str) -> None:
    whole = fitted(strategy, folder / "whole", 4, folder / "of-whole")
    fitted(strategy, folder / "parts", 2, folder / "tickets")
    stopped = folder / "tickets" / "epoch=1-step=4.ckpt"
    parts = fitted(strategy, folder / "parts", 4, folder / "tickets", ckpt_path=stopped)
    pairs = list(zip(whole.lightning_module.parameters(), parts.lightning_module.parameters(), strict=True))
    if strategy == "ddp":  # others have their optimizers in processes that are gone
        moments = [each.optimizers[0].state_dict()["state"] for each in (whole, parts)]
        pairs += [(moments[0][n]["exp_avg"], moments[1][n]["exp_avg"]) for n in moments[0]]
    same = all(torch.equal(one, other) for one, other in pairs)
    print(f"rank {parts.global_rank} {'same' if same else 'different'}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
