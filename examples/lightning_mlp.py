"""Train a small network with Lightning, with Strata under its checkpoints.

    python examples/lightning_mlp.py [FOLDER] [EPOCHS]

Stop it and start it again: it goes on from the latest checkpoint, to the same parameters as if it had not stopped.
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning.pytorch as pl
except ModuleNotFoundError:  # Lightning has two names
    import pytorch_lightning as pl

from strata.integrations.lightning import StrataCheckpointIO


class Regression(pl.LightningModule):  # type: ignore[misc]  # of one package or the other
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def data() -> DataLoader[tuple[torch.Tensor, ...]]:
    features = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(features, features.sum(1, keepdim=True).sin()), batch_size=32)


def main(folder: Path, epochs: int) -> None:
    pl.seed_everything(0)
    model = Regression()
    checkpoints = StrataCheckpointIO(folder / "strata", job_id="mlp")
    best = pl.callbacks.ModelCheckpoint(folder / "paths", monitor="loss", save_top_k=2)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        plugins=[checkpoints],
        callbacks=[best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data(), ckpt_path=checkpoints.latest_path())
    print(f"trained to step {trainer.global_step}; the best, {best.best_model_score:.6f}, is {best.best_model_path}")
    if best.best_model_path:
        again = checkpoints.load_module(Regression, best.best_model_path)
        print(f"loaded a network of width {again.hparams['width']}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(Path(given[0] if given else "lightning_mlp"), int(given[1]) if given[1:] else 4)
