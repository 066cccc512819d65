"""A tiny language model and a Trainer over Strata for it, for tests and for the processes that they start."""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from strata.integrations.huggingface import StrataTrainerMixin


class StrataTrainer(StrataTrainerMixin, Trainer):
    pass


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, length: int = 24) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(8) + index) % 32
        return {"input_ids": numbers, "labels": numbers}


def model() -> GPT2LMHeadModel:
    """With dropout: so random numbers count."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def trainer(folder: Path, kind: type[Trainer] = StrataTrainer, own: Any = None, **more: Any) -> Any:
    """`own` is for the mixin alone."""
    settings = {"max_steps": 8, "save_steps": 2, "logging_steps": 2, "per_device_train_batch_size": 4, **more}
    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, learning_rate=1e-2, **settings
    )
    data: dict[str, Any] = {"train_dataset": Counting(), "eval_dataset": Counting(8)}
    return kind(model(), arguments, **data, **(own or {}))


def training_state(trained: Any) -> Any:
    return {
        "model": trained.model.state_dict(),
        "optimizer": trained.optimizer.state_dict()["state"],
        "scheduler": trained.lr_scheduler.state_dict(),
        "history": [entry.get("loss") for entry in trained.state.log_history if "loss" in entry],
    }


class StopAt(TrainerCallback):
    """Ends training as if it had been stopped: with all that it was to be still to come."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self._step


def in_two_parts(folder: Path, at: int, **more: Any) -> Any:
    first = trainer(folder, **more)
    first.add_callback(StopAt(at))
    first.train()
    second = trainer(folder, **more)
    second.train(resume_from_checkpoint=True)
    return second


def main(folder: Path) -> None:
    """On several ranks."""
    whole = trainer(folder / "whole")
    whole.train()
    parts = in_two_parts(folder / "parts", 4)
    one, other = training_state(whole), training_state(parts)
    pairs = [(one["model"][n], other["model"][n]) for n in one["model"]]
    pairs += [(one["optimizer"][n]["exp_avg"], other["optimizer"][n]["exp_avg"]) for n in one["optimizer"]]
    same = all(torch.equal(mine, theirs) for mine, theirs in pairs)
    print(f"rank {parts.args.process_index} {'same' if same else 'different'}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
