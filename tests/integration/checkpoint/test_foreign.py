"""Other people's checkpoints for real: folders that several ranks of torch saved, and models of transformers."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from strata import CheckpointManager, CheckpointReader
from tests.e2e.telling import strata_here
from tests.integration.checkpoint.sharded_save import whole
from tests.unit.checkpoint.states import assert_same

ROOT = Path(__file__).parents[3]


def ckpt(*arguments: str | Path) -> str:
    told = strata_here("ckpt", *arguments)
    assert told.returncode == 0, told.stderr.decode()
    return told.stdout.decode()


@pytest.mark.long
def test_what_four_ranks_saved_in_shards_is_imported_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.checkpoint.sharded_save", str(tmp_path / "dcp")]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with ExitStack() as started:
        ranks = []
        for number in range(4):
            rank = subprocess.Popen([*command, str(number), "4"], cwd=ROOT, env=environment, stderr=subprocess.PIPE)
            ranks.append(started.enter_context(rank))
            started.callback(rank.kill)
        for rank in ranks:
            _, said = rank.communicate(timeout=180)
            assert rank.returncode == 0, said.decode()
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) > 1
    ckpt("import", tmp_path / "dcp", tmp_path / "root", "--step", "9")
    with CheckpointReader(tmp_path / "root") as reader:
        assert_same(reader.load(), {"model": whole(), "step": 9})


# -- transformers ----------------------------------------------------------------------------------------------------

SMALL: Any = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32}
SMALL |= {"num_hidden_layers": 2, "num_attention_heads": 2}


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, **more))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: Any = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(vocab_size=60, **size))


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**SMALL, max_position_embeddings=32))


MODELS: dict[str, Any] = {
    "llama": llama,
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "gpt2": gpt2,
    "bert": bert,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(12)[None]).logits
    return found


def opened(model: Any, folder: Path) -> Any:
    """As `from_pretrained` opens it: nothing missing, nothing that it does not know."""
    made, told = type(model).from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"], told
    assert not told["unexpected_keys"], told
    assert not told["mismatched_keys"], told
    return made.eval()


def is_tied(model: Any) -> bool:
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_transformers_opens_what_is_exported(model: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    with CheckpointManager(tmp_path / "root") as manager:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "config": model.config.to_dict()}
        manager.save(state, step=1)
        manager.save(torch.nn.Sequential(model).state_dict(), step=2)
    model.config.save_pretrained(tmp_path / "config")
    ckpt("export", "hf", tmp_path / "root", tmp_path / "from state", "--step", "1")
    ckpt("export", "hf", tmp_path / "root", tmp_path / "said", "--config", tmp_path / "config", "--strip", "0.")
    for folder in ("from state", "said"):
        found = opened(model, tmp_path / folder)
        assert torch.equal(logits(found), logits(model))
        assert is_tied(found) == is_tied(model)


def test_in_shards_and_back_again(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "theirs", max_shard_size="10KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    ckpt("import", tmp_path / "theirs", tmp_path / "root", "--step", "5")
    with CheckpointReader(tmp_path / "root") as reader:
        state = reader.load()
        assert state["config"]["model_type"] == model.config.model_type
        missing = model.load_state_dict(state["model"], strict=False)
        assert not missing.unexpected_keys
    ckpt("export", "hf", tmp_path / "root", tmp_path / "ours")
    assert torch.equal(logits(opened(model, tmp_path / "ours")), logits(model))
    configs = [json.loads((tmp_path / name / "config.json").read_text("utf-8")) for name in ("theirs", "ours")]
    assert configs[0] == configs[1]


def test_a_large_model_becomes_shards_with_an_index(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = llama(max_position_embeddings=64).eval()
    model.resize_token_embeddings(40_000)
    with CheckpointManager(tmp_path / "root") as manager:
        manager.save({"model": model.state_dict(), "config": model.config.to_dict()}, step=1)
    ckpt("export", "hf", tmp_path / "root", tmp_path / "out", "--shard-gib", "0.002")
    assert (tmp_path / "out" / "model.safetensors.index.json").exists()
    assert torch.equal(logits(opened(model, tmp_path / "out")), logits(model))
