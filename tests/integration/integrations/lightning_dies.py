"""Trains, and dies while its third checkpoint is being written: run by `test_lightning`."""

import os
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from strata import LocalStorage
from strata.integrations.lightning import StrataCheckpointIO
from strata.testing import FaultyStorage
from strata.testing.faulty import Faults
from tests.integration.integrations.modules import BATCHES, Small, batches, trainer


class Dies(pl.Callback):
    def __init__(self, storage: FaultyStorage, plugin: StrataCheckpointIO) -> None:
        self._storage, self._plugin = storage, plugin

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3 * BATCHES - 1:
            self._plugin.wait()  # the fault is for what comes next alone
            self._storage.faults = Faults(stuck=1.0)
        if trainer.global_step == 3 * BATCHES + 1:
            os._exit(9)


def main(folder: Path) -> None:
    storage = FaultyStorage(LocalStorage(folder / "root"))
    plugin = StrataCheckpointIO(storage)
    callbacks = [ModelCheckpoint(folder / "tickets", save_last=True), Dies(storage, plugin)]
    trainer(4, plugin, callbacks).fit(Small(), batches())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
