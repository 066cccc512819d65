"""Train a tiny language model with the Trainer of transformers, with Strata under its checkpoints.

    python examples/huggingface_trainer.py [FOLDER] [STEPS]

Stop it and start it again: it goes on from the latest checkpoint, to the same parameters as if it had not stopped.
Nothing is downloaded: the model is made from its configuration, and the data is made up.
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from strata import CheckpointReader
from strata.integrations.huggingface import StrataTrainerMixin


class MyTrainer(StrataTrainerMixin, Trainer):
    pass


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up, from different numbers on."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(16) + index) % 64
        return {"input_ids": numbers, "labels": numbers}


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def main(folder: Path, steps: int) -> None:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        save_steps=5,
        save_total_limit=2,
        logging_steps=5,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = MyTrainer(model(), arguments, train_dataset=Counting(), checkpoints=folder / "strata", job_id="gpt")
    latest = CheckpointReader(folder / "strata", job_id="gpt").latest_step()
    trainer.train(resume_from_checkpoint=latest)
    print(f"went on from step {latest}, trained to step {trainer.state.global_step}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(Path(given[0] if given else "huggingface_trainer"), int(given[1]) if given[1:] else 20)
