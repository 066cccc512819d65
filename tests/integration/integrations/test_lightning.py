"""Lightning's Trainer over Strata: the real one, on the CPU."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

pl = pytest.importorskip("pytorch_lightning")

from pytorch_lightning.callbacks import ModelCheckpoint  # noqa: E402  only where there is Lightning
from pytorch_lightning.plugins.io import CheckpointIO, TorchCheckpointIO  # noqa: E402

from strata import (  # noqa: E402
    CheckpointManager,
    CheckpointManagerConfig,
    CheckpointReader,
    InvalidInput,
    MemoryStorage,
    NotFound,
    StorageError,
    Unstorable,
)
from strata.integrations.lightning import StrataCheckpointIO, plain  # noqa: E402
from strata.testing import FaultyStorage  # noqa: E402
from strata.testing.faulty import Faults  # noqa: E402
from tests.integration.integrations.modules import BATCHES, Small, batches, options, trainer  # noqa: E402
from tests.integration.integrations.sameness import assert_same  # noqa: E402

# What Lightning says of a machine without GPUs, of few cores, and of folders that are there already.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def training_state(trained: Any) -> tuple[dict[str, torch.Tensor], Any]:
    return trained.lightning_module.state_dict(), trained.optimizers[0].state_dict()


def fitted(epochs: int, plugin: Any, callbacks: Any = (), ckpt_path: Any = None, **more: Any) -> Any:
    trained = trainer(epochs, plugin, callbacks, **more)
    trained.fit(Small(), batches(), ckpt_path=ckpt_path)
    return trained


def every_epoch(folder: Path, **more: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, save_top_k=-1, **more)


def steps(root: Path, job: str = "default") -> list[int]:
    return CheckpointReader(root, job_id=job).list_checkpoints()


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("*.ckpt"))


# -- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["last", "path", "latest", "step"])
def test_a_run_that_stops_and_goes_on_is_the_same_as_one_that_does_not(tmp_path: Path, where: str) -> None:
    whole = fitted(4, StrataCheckpointIO(tmp_path / "whole"), [every_epoch(tmp_path / "of-whole")])
    tickets = tmp_path / "tickets"
    fitted(2, StrataCheckpointIO(tmp_path / "parts"), [every_epoch(tickets, save_last=True)])
    path = {
        "last": "last",
        "path": tickets / f"epoch=1-step={2 * BATCHES}.ckpt",
        "latest": "latest",
        "step": f"step_{2 * BATCHES}",
    }[where]
    callback = every_epoch(tickets, save_last=True)
    parts = fitted(4, StrataCheckpointIO(tmp_path / "parts"), [callback], ckpt_path=path)
    assert parts.global_step == whole.global_step == 4 * BATCHES
    assert_same(training_state(parts), training_state(whole))
    assert_same(
        parts.lr_scheduler_configs[0].scheduler.state_dict(), whole.lr_scheduler_configs[0].scheduler.state_dict()
    )
    assert steps(tmp_path / "parts") == [BATCHES * n for n in (1, 2, 3, 4)]


def test_it_is_the_same_as_with_lightnings_own(tmp_path: Path) -> None:
    fitted(2, StrataCheckpointIO(tmp_path / "strata"), [every_epoch(tmp_path / "tickets")])
    fitted(2, TorchCheckpointIO(), [every_epoch(tmp_path / "files")])
    name = f"epoch=1-step={2 * BATCHES}.ckpt"
    ours = StrataCheckpointIO(tmp_path / "strata").load_checkpoint(tmp_path / "tickets" / name)
    theirs = TorchCheckpointIO().load_checkpoint(tmp_path / "files" / name, weights_only=False)
    for each in (ours, theirs):
        each.pop("callbacks")  # their paths differ
    assert_same(ours, theirs)


def test_the_step_and_the_epoch_are_the_trainers(tmp_path: Path) -> None:
    fitted(2, StrataCheckpointIO(tmp_path / "root", job_id="gpt"), [every_epoch(tmp_path / "tickets")])
    told = CheckpointReader(tmp_path / "root", job_id="gpt").describe(2 * BATCHES)
    assert (told.step, told.epoch) == (2 * BATCHES, 1)
    with CheckpointManager(tmp_path / "root", job_id="gpt") as manager:
        theirs = fitted(2, TorchCheckpointIO(), enable_checkpointing=False)
        assert_same(manager.load()["state_dict"], theirs.lightning_module.state_dict())


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    plugin = StrataCheckpointIO(tmp_path / "root")
    assert plugin.latest_path() is None
    with pytest.raises(NotFound, match="no committed checkpoint"):
        plugin.load_checkpoint("latest")
    with pytest.raises(NotFound):
        plugin.load_checkpoint(tmp_path / "never.ckpt")
    (tmp_path / "torch.ckpt").write_bytes(b"\x80\x02no ticket")
    with pytest.raises(InvalidInput, match="was not saved with Strata"):
        plugin.load_checkpoint(tmp_path / "torch.ckpt")


def test_going_back_leaves_what_came_after_behind(tmp_path: Path) -> None:
    tickets, root = tmp_path / "tickets", tmp_path / "root"
    fitted(3, StrataCheckpointIO(root), [every_epoch(tickets)])
    back = tickets / f"epoch=0-step={BATCHES}.ckpt"
    fitted(2, StrataCheckpointIO(root), [every_epoch(tickets)], ckpt_path=back)
    assert steps(root) == [BATCHES, 2 * BATCHES]
    assert f"epoch=1-step={2 * BATCHES}-v1.ckpt" in names(tickets)
    plugin = StrataCheckpointIO(root)
    assert plugin.load_checkpoint(tickets / f"epoch=1-step={2 * BATCHES}-v1.ckpt")["global_step"] == 2 * BATCHES
    with pytest.raises(NotFound, match="left behind by a run that went back"):
        plugin.load_checkpoint(tickets / f"epoch=1-step={2 * BATCHES}.ckpt")


def test_what_came_after_is_left_behind_also_where_other_steps_are_saved(tmp_path: Path) -> None:
    tickets, root = tmp_path / "tickets", tmp_path / "root"
    fitted(3, StrataCheckpointIO(root), [every_epoch(tickets)])
    now_and_then = ModelCheckpoint(tickets, save_top_k=-1, every_n_train_steps=2 * BATCHES + 1)
    fitted(3, StrataCheckpointIO(root), [now_and_then], ckpt_path=tickets / f"epoch=0-step={BATCHES}.ckpt")
    assert steps(root) == [BATCHES, 2 * BATCHES + 1]


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_the_best_are_kept_and_the_rest_is_removed(tmp_path: Path) -> None:
    plugin = StrataCheckpointIO(tmp_path / "root")
    callback = ModelCheckpoint(tmp_path / "tickets", monitor="rising", mode="max", save_top_k=2)
    fitted(5, plugin, [callback])
    assert steps(tmp_path / "root") == [4 * BATCHES, 5 * BATCHES]
    assert names(tmp_path / "tickets") == [f"epoch={n}-step={(n + 1) * BATCHES}.ckpt" for n in (3, 4)]
    assert callback.best_model_path.endswith(f"epoch=4-step={5 * BATCHES}.ckpt")
    assert plugin.load_checkpoint(callback.best_model_path)["epoch"] == 4


def test_one_step_under_two_paths_is_saved_twice_or_linked(tmp_path: Path) -> None:
    fitted(3, StrataCheckpointIO(tmp_path / "root"), [ModelCheckpoint(tmp_path / "tickets", save_last=True)])
    assert steps(tmp_path / "root") == steps(tmp_path / "root", "default-2") == [3 * BATCHES]
    ours = StrataCheckpointIO(tmp_path / "root").load_checkpoint(tmp_path / "tickets" / "last.ckpt")
    assert next(iter(ours["callbacks"].values()))["last_model_path"].endswith("last.ckpt")

    linked = StrataCheckpointIO(tmp_path / "linked")
    fitted(3, linked, [every_epoch(tmp_path / "links", save_last="link")])
    assert (tmp_path / "links" / "last.ckpt").is_symlink()
    assert steps(tmp_path / "linked", "default-2") == []
    again = fitted(4, linked, [every_epoch(tmp_path / "links", save_last="link")], ckpt_path="last")
    assert again.global_step == 4 * BATCHES
    assert steps(tmp_path / "linked") == [BATCHES * n for n in (1, 2, 3, 4)]


def test_what_is_pinned_stays(tmp_path: Path) -> None:
    plugin = StrataCheckpointIO(tmp_path / "root")
    fitted(1, plugin, [every_epoch(tmp_path / "tickets")])
    with CheckpointManager(tmp_path / "root") as manager:
        manager.pin(BATCHES)
    plugin.remove_checkpoint(tmp_path / "tickets" / f"epoch=0-step={BATCHES}.ckpt")
    plugin.teardown()
    assert steps(tmp_path / "root") == [BATCHES]
    assert names(tmp_path / "tickets") == []


# -- behind ----------------------------------------------------------------------------------------------------------


class AtBatch(pl.Callback):  # type: ignore[misc, name-defined]
    def __init__(self, step: int, do: Any) -> None:
        self.step, self.do = step, do

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.do()


def test_training_goes_on_while_it_is_written_and_the_one_before_stays_until_then(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage())
    plugin, tickets = StrataCheckpointIO(storage), tmp_path / "tickets"
    seen: list[list[str]] = []

    def hold() -> None:
        plugin.wait()  # the first save is over
        writes = frozenset({"put_if_absent", "write", "compare_and_swap", "writer.write"})
        storage.faults = Faults(stuck=1.0, only=writes)

    def look() -> None:
        seen.append(names(tickets))
        storage.faults = Faults()
        storage.release()

    callbacks = [ModelCheckpoint(tickets, save_top_k=1), AtBatch(2 * BATCHES - 1, hold), AtBatch(3 * BATCHES - 1, look)]
    fitted(3, plugin, callbacks)
    assert seen == [[f"epoch=0-step={BATCHES}.ckpt"]]  # of the second save, and of the removal, nothing was there yet
    assert names(tickets) == [f"epoch=2-step={3 * BATCHES}.ckpt"]


def test_a_save_that_fails_is_raised_at_the_end_and_costs_nothing_that_was_there(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage())
    plugin, tickets = StrataCheckpointIO(storage), tmp_path / "tickets"

    def fail() -> None:
        plugin.wait()  # the first save is over
        storage.faults = Faults(before=1.0)

    with pytest.raises(StorageError):
        fitted(2, plugin, [ModelCheckpoint(tickets), AtBatch(2 * BATCHES - 1, fail)])
    storage.faults = Faults()
    assert names(tickets) == [f"epoch=0-step={BATCHES}.ckpt"]
    assert plugin.load_checkpoint(tickets / f"epoch=0-step={BATCHES}.ckpt")["global_step"] == BATCHES


def test_too_many_failures_in_a_row_end_training(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage(), faults=Faults(before=1.0))
    plugin = StrataCheckpointIO(storage, config=CheckpointManagerConfig(max_failed_saves=1))
    trained = trainer(9, plugin, [every_epoch(tmp_path / "tickets")])
    with pytest.raises(StorageError):
        trained.fit(Small(), batches())
    assert trained.current_epoch < 9
    assert names(tmp_path / "tickets") == []


def test_a_ticket_that_cannot_be_put_is_told(tmp_path: Path) -> None:
    (tmp_path / "tickets").write_text("a file where the folder should be")
    plugin = StrataCheckpointIO(tmp_path / "root")
    plugin.save_checkpoint({"global_step": 5, "epoch": 0}, tmp_path / "tickets" / "a.ckpt")
    with pytest.raises(StorageError, match="step 5 is committed in"):
        plugin.teardown()
    plugin.teardown()  # once is enough
    assert steps(tmp_path / "root") == [5]


# -- what can be stored ----------------------------------------------------------------------------------------------


def test_namespaces_and_paths_are_stored_as_plain_values(tmp_path: Path) -> None:
    plugin = StrataCheckpointIO(tmp_path / "root")
    trained = trainer(1, plugin, [every_epoch(tmp_path / "tickets")])
    trained.fit(Small(width=6, options=options(tmp_path)), batches())
    path = tmp_path / "tickets" / f"epoch=0-step={BATCHES}.ckpt"
    told = plugin.load_checkpoint(path)["hyper_parameters"]
    assert told == {"width": 6, "options": {"folder": str(tmp_path), "betas": (0.9, 0.99)}}
    again = plugin.load_module(Small, path)
    assert again.hparams["width"] == 6
    assert_same(again.state_dict(), trained.lightning_module.state_dict())


def test_what_no_checkpoint_can_hold_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    trained = trainer(1, StrataCheckpointIO(tmp_path / "root"), [every_epoch(tmp_path / "tickets")])
    with pytest.raises(Unstorable, match=r"hyper_parameters/options/after: a datetime\.timedelta cannot be stored"):
        trained.fit(Small(options={"after": timedelta(hours=1)}), batches())
    assert names(tmp_path / "tickets") == []
    assert steps(tmp_path / "root") == []


def test_plain() -> None:
    class Text(str):
        __slots__ = ()

    given = {"a": [Text("x"), (Path("b"), True, None)], "c": {"d": Text("y")}}
    assert plain(given) == {"a": ["x", ("b", True, None)], "c": {"d": "y"}}
    assert type(plain(Text("x"))) is str
    assert plain(True) is True


@pytest.mark.parametrize("options", [{"rank": 1}, {"config": CheckpointManagerConfig(when_busy="skip")}])
def test_what_lightning_cannot_do_is_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(InvalidInput):
        StrataCheckpointIO(tmp_path, **options)
    with pytest.raises(InvalidInput, match="map_location must be a device"):
        StrataCheckpointIO(tmp_path).load_checkpoint("latest", map_location=lambda storage, where: storage)
    with pytest.raises(InvalidInput, match="storage_options"):
        StrataCheckpointIO(tmp_path).save_checkpoint({}, tmp_path / "a.ckpt", storage_options={"compress": True})


# -- without a step, and with several processes ----------------------------------------------------------------------


def test_a_dict_without_a_step_is_saved_at_its_path(tmp_path: Path) -> None:
    plugin = StrataCheckpointIO(tmp_path / "root")
    assert isinstance(plugin, CheckpointIO)
    for number in (1, 2):
        plugin.save_checkpoint({"weight": torch.full((3,), float(number))}, tmp_path / "weights.ckpt")
    loaded = plugin.load_checkpoint(tmp_path / "weights.ckpt", map_location="cpu")
    assert torch.equal(loaded["weight"], torch.full((3,), 2.0))
    plugin.remove_checkpoint(tmp_path / "weights.ckpt")
    plugin.teardown()
    assert list(tmp_path.iterdir()) == []


def test_fabric_saves_and_loads(tmp_path: Path) -> None:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, plugins=[StrataCheckpointIO(tmp_path / "root")])  # type: ignore[list-item]
    model = Small().net
    fabric.save(tmp_path / "state.ckpt", {"model": model, "seen": 7})
    again = Small(width=8).net
    torch.nn.init.zeros_(again.get_parameter("0.weight"))
    assert fabric.load(tmp_path / "state.ckpt", {"model": again}) == {"seen": 7}
    assert_same(dict(again.state_dict()), dict(model.state_dict()))


def ran(*program: Any) -> "subprocess.CompletedProcess[str]":
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [sys.executable, *program], env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def test_a_process_that_dies_while_it_saves_goes_on_from_the_save_before(tmp_path: Path) -> None:
    told = ran(HERE / "lightning_dies.py", tmp_path)
    assert told.returncode == 9, told.stderr[-3000:]
    tickets = tmp_path / "tickets"
    assert names(tickets) == [f"epoch=1-step={2 * BATCHES}.ckpt", "last.ckpt"]
    whole = fitted(4, StrataCheckpointIO(tmp_path / "whole"), enable_checkpointing=False)
    plugin = StrataCheckpointIO(tmp_path / "root")
    parts = fitted(4, plugin, [ModelCheckpoint(tickets, save_last=True)], ckpt_path="last")
    assert_same(training_state(parts), training_state(whole))
    assert steps(tmp_path / "root") == [4 * BATCHES]


@pytest.mark.long
def test_processes_that_lightning_spawns(tmp_path: Path) -> None:
    """What the first of them comes to goes back to this one through a file without a step."""
    told = ran(HERE / "lightning_processes.py", tmp_path, "ddp_spawn")
    assert told.returncode == 0, told.stderr[-3000:]
    assert "rank 0 same" in told.stdout


@pytest.mark.long
def test_two_processes(tmp_path: Path) -> None:
    """The first alone writes; both go on from it, to what an undisturbed run comes to."""
    told = ran(HERE / "lightning_processes.py", tmp_path, "ddp")
    assert told.returncode == 0, told.stderr[-3000:]
    assert sorted(line for line in told.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 same",
        "rank 1 same",
    ]
    assert steps(tmp_path / "parts") == [2, 4, 6, 8]
    reader = CheckpointReader(tmp_path / "parts")
    assert reader.describe().world_size == 1


@pytest.mark.long
def test_the_example(tmp_path: Path) -> None:
    def run(epochs: int) -> str:
        return ran(ROOT / "examples" / "lightning_mlp.py", tmp_path, str(epochs)).stdout

    assert "trained to step 16;" in run(2)
    assert "trained to step 24;" in run(3)
    assert CheckpointReader(tmp_path / "strata", job_id="mlp").list_checkpoints() == [16, 24]
