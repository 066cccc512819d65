"""A small Lightning module and its data, for tests, in processes that Lightning starts, too."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 4


class Small(pl.LightningModule):
    """Its hyper-parameters are of kinds that need a pickle elsewhere."""

    def __init__(self, width: int = 8, options: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(7)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        # Rising: so the first epochs are the best ones.
        self.log("rising", float(self.current_epoch), on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)]


def batches() -> DataLoader[tuple[torch.Tensor, ...]]:
    features = torch.randn(BATCHES * 8, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(features, features.sum(1, keepdim=True)), batch_size=8)


def options(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(folder=folder, betas=(0.9, 0.99))


def trainer(epochs: int, plugin: Any, callbacks: Sequence[Any] = (), **more: Any) -> pl.Trainer:
    settings = {"accelerator": "cpu", "devices": 1, "logger": False, **more}
    return pl.Trainer(
        max_epochs=epochs,
        plugins=[plugin],
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
