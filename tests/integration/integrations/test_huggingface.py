"""The Trainer of transformers over Strata: the real one, on the CPU, with a model made from its configuration."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import GPT2LMHeadModel, Trainer

from strata import (
    CheckpointManager,
    CheckpointReader,
    InvalidInput,
    MemoryStorage,
    NotFound,
    StorageError,
)
from strata.testing import FaultyStorage
from strata.testing.faulty import Faults
from tests.integration.integrations import trainers
from tests.integration.integrations.sameness import assert_same
from tests.integration.integrations.trainers import StopAt, in_two_parts, trainer, training_state

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
]

ROOT = Path(__file__).parents[3]


def whole(folder: Path, **more: Any) -> Any:
    """Undisturbed, and without Strata."""
    trained = trainer(folder, Trainer, save_strategy="no", **more)
    trained.train()
    return trained


def steps(root: Path) -> list[int]:
    return CheckpointReader(root).list_checkpoints()


# -- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [4, 6], ids=["within an epoch", "between two"])
def test_a_run_that_stops_and_goes_on_is_the_same_as_one_that_does_not(tmp_path: Path, at: int) -> None:
    parts = in_two_parts(tmp_path / "parts", at)
    assert_same(training_state(parts), training_state(whole(tmp_path / "whole")))
    assert steps(tmp_path / "parts") == [2, 4, 6, 8]
    assert not list((tmp_path / "parts").glob("checkpoint-*"))


def test_gradient_accumulation_and_workers_go_on_too(tmp_path: Path) -> None:
    more = {"gradient_accumulation_steps": 2, "dataloader_num_workers": 1, "lr_scheduler_type": "cosine"}
    parts = in_two_parts(tmp_path / "parts", 4, **more)
    assert_same(training_state(parts), training_state(whole(tmp_path / "whole", **more)))


def test_an_order_of_the_data_that_random_numbers_give_is_found_again(tmp_path: Path) -> None:
    more = {"accelerator_config": {"use_seedable_sampler": False}}
    parts = in_two_parts(tmp_path / "parts", 4, **more)
    assert_same(training_state(parts), training_state(whole(tmp_path / "whole", **more)))


def test_resuming_from_a_step_leaves_what_came_after_behind(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    again = trainer(tmp_path)
    again.add_callback(StopAt(4))
    again.train(resume_from_checkpoint=2)
    assert steps(tmp_path) == [2, 4]
    assert again.state.global_step == 4


def test_a_folder_of_the_trainers_own_is_gone_on_from(tmp_path: Path) -> None:
    before = trainer(tmp_path / "files", Trainer)
    before.add_callback(StopAt(4))
    before.train()
    after = trainer(tmp_path / "strata")
    after.train(resume_from_checkpoint=str(tmp_path / "files" / "checkpoint-4"))
    assert_same(training_state(after), training_state(whole(tmp_path / "whole")))
    assert steps(tmp_path / "strata") == [6, 8]


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no committed checkpoint in .* to resume from"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(NotFound, match="True, a step, or a folder"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "nowhere"))
    with CheckpointManager(tmp_path) as manager:
        manager.save({"weights": torch.ones(3)}, step=1)
    with pytest.raises(InvalidInput, match="was not saved by a Trainer"):
        trainer(tmp_path).train(resume_from_checkpoint=1)


# -- what is saved, and kept -----------------------------------------------------------------------------------------


def test_what_is_logged_goes_with_the_save_and_the_limit_is_kept(tmp_path: Path) -> None:
    trainer(tmp_path, save_total_limit=2).train()
    assert steps(tmp_path) == [6, 8]
    told = CheckpointReader(tmp_path).describe(8)
    assert {"loss", "grad_norm", "learning_rate"} <= told.metrics.keys()
    assert told.epoch == 1


def test_the_best_model_is_kept_and_loaded_at_the_end(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "greater_is_better": True,  # the loss falls: so the first is the best
        "save_total_limit": 1,
    }
    trained = trainer(tmp_path, **settings)
    trained.train()
    assert trained.state.best_global_step == 2
    assert steps(tmp_path) == [2, 8]
    assert_same(dict(trained.model.state_dict()), _model_at(tmp_path, 2))
    stopped = in_two_parts(tmp_path / "parts", 4, **settings)
    assert stopped.state.best_model_checkpoint == "checkpoint-2"
    assert_same(dict(stopped.model.state_dict()), dict(trained.model.state_dict()))


def _model_at(folder: Path, step: int) -> dict[str, torch.Tensor]:
    stored = CheckpointReader(folder).load(step)["model"]
    return {name: stored[name] for name in trainers.model().state_dict()}


def test_a_manager_of_ones_own_is_used_and_left_open(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "own", job_id="gpt", incremental=True) as manager:
        trainer(tmp_path, own={"checkpoints": manager}).train()
        assert manager.list_checkpoints() == [2, 4, 6, 8]
        again = trainer(tmp_path, own={"checkpoints": manager}, max_steps=10)
        again.train(resume_from_checkpoint=True)
        assert manager.list_checkpoints() == [2, 4, 6, 8, 10]


def test_it_is_exported_for_from_pretrained(tmp_path: Path) -> None:
    trained = trainer(tmp_path / "run")
    trained.train()
    folders = [str(tmp_path / "run"), str(tmp_path / "exported")]
    program = [sys.executable, "-m", "strata", "ckpt", "export", "hf", *folders]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(program, env=environment, check=True, capture_output=True, timeout=120)
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "exported")
    assert_same(dict(again.state_dict()), dict(trained.model.state_dict()))


def test_a_checkpoint_without_an_optimizer_is_not_gone_on_from(tmp_path: Path) -> None:
    trainer(tmp_path, save_only_model=True).train()
    assert "optimizer" not in CheckpointReader(tmp_path).load(8)
    with pytest.raises(Exception, match="optimizer"):
        trainer(tmp_path, max_steps=10).train(resume_from_checkpoint=True)


# -- failures --------------------------------------------------------------------------------------------------------


def test_training_goes_on_while_it_is_written(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0, only=frozenset({"put_if_absent"})))
    seen = []

    class Release(StopAt):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                seen.append(CheckpointReader(storage).list_checkpoints())
                storage.release()

    trained = trainer(tmp_path, own={"checkpoints": storage})
    trained.add_callback(Release(0))
    trained.train()
    assert seen == [[]]
    assert CheckpointReader(storage).list_checkpoints() == [2, 4, 6, 8]


def test_a_save_that_fails_is_raised_when_training_is_over(tmp_path: Path) -> None:
    storage = FaultyStorage(MemoryStorage())

    class Break(StopAt):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 7:
                manager.wait()  # the fault is for the last save alone
                storage.faults = Faults(before=1.0)

    with CheckpointManager(storage) as manager:
        trained = trainer(tmp_path, own={"checkpoints": manager})
        trained.add_callback(Break(0))
        with pytest.raises(StorageError):
            trained.train()
        assert trained.state.global_step == 8
    storage.faults = Faults()
    assert CheckpointReader(storage).list_checkpoints() == [2, 4, 6]


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="push_to_hub"):
        trainer(tmp_path, push_to_hub=True, hub_token="none")
    with pytest.raises(InvalidInput, match="FSDP 1"):
        trainer(tmp_path, fsdp="full_shard", fsdp_config={"version": 1})
    with CheckpointManager(tmp_path) as manager, pytest.raises(InvalidInput, match="save_total_limit"):
        trainer(tmp_path, own={"checkpoints": manager}, save_total_limit=2)


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_ranks(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [*program, f"--master-port={port}", trainers.__file__, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    assert sorted(line for line in told.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 same",
        "rank 1 same",
    ]
    assert CheckpointReader(tmp_path / "parts").describe().world_size == 2
    one = trainer(tmp_path / "parts", max_steps=10)  # and one process goes on from what two have saved
    one.train(resume_from_checkpoint=True)
    assert steps(tmp_path / "parts") == [2, 4, 6, 8, 10]


@pytest.mark.long
def test_the_example(tmp_path: Path) -> None:
    def run(count: int) -> str:
        program = [sys.executable, str(ROOT / "examples" / "huggingface_trainer.py"), str(tmp_path), str(count)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=200, check=True).stdout

    assert "went on from step None, trained to step 8" in run(8)
    assert "went on from step 8, trained to step 12" in run(12)
