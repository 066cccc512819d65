"""Tensors of checkpoints as safetensors files, read back by the safetensors library itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.exporting import INDEX, Exported, Meter, choose, export_safetensors, tree_in
from strata.checkpoint.foreign.hf import KEYS, config_in, export_hf, files_beside
from strata.checkpoint.manifest import CHUNK_BYTES
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.whole import Whole
from strata.errors import CheckpointDamaged, InvalidInput
from strata.storage import BlockingStorage, LocalStorage, MemoryStorage, StorageBackend
from tests.unit.checkpoint.states import bits


def saved(state: Any, storage: StorageBackend | None = None, step: int = 1, *, incremental: bool = False) -> Store:
    storage = storage or MemoryStorage()
    with CheckpointManager(storage, incremental=incremental) as manager:
        manager.save(state, step=step)
    return Store(storage, "default")


def part_of(store: Store, step: int = 1) -> Whole:
    return background.run(tree_in(store, Folder(step)))[1]


def export(store: Store, target: Path, *, step: int = 1, keys: Any = None, strip: str = "", **how: Any) -> Exported:
    part = part_of(store, step)
    choice = choose(part, keys, strip, tied_once=how.pop("tied_once", False))
    return background.run(export_safetensors(store, Folder(step), part, choice, LocalStorage(target), **how))


def read(folder: Path, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(folder / name)


def assert_same_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(found[name]) == bits(tensor), name


TENSORS = {
    "model/w": torch.randn(7, 5),
    "model/half": torch.randn(3).bfloat16(),
    "model/flags": torch.tensor([True, False]),
    "model/empty": torch.zeros(0, 3),
    "model/scalar": torch.tensor(4.0),
    "optimizer/state/0/step": torch.tensor(3, dtype=torch.int64),
}
STATE = {
    "model": {name[6:]: tensor for name, tensor in TENSORS.items() if name.startswith("model/")},
    "optimizer": {"state": {0: {"step": TENSORS["optimizer/state/0/step"]}}, "lr": 0.1},
    "raw": b"bytes",
    "number": np.float32(3),
}


# -- safetensors -----------------------------------------------------------------------------------------------------


def test_tensors_are_written_under_their_names(tmp_path: Path) -> None:
    seen: list[int] = []
    expected: list[int] = []
    made = export(saved(STATE), tmp_path, meter=Meter(expected.append, seen.append))
    assert_same_tensors(read(tmp_path), TENSORS)
    size = sum(tensor.nbytes for tensor in TENSORS.values())
    assert made == Exported(["model.safetensors"], 6, size, left_out=2)
    assert (expected, sum(seen)) == ([size], size)


def test_what_is_one_in_memory_is_written_out(tmp_path: Path) -> None:
    mask = torch.rand(256, 256) > 0.5
    expanded = mask.expand(1 << 10, 256, 256)  # exactly as much as may be
    export(saved({"mask": mask, "expanded": expanded}), tmp_path)
    assert_same_tensors(read(tmp_path), {"mask": mask, "expanded": expanded})


def test_keys_choose_and_a_prefix_is_stripped(tmp_path: Path) -> None:
    made = export(saved(STATE), tmp_path, keys=["model/*"], strip="model/", file="weights.safetensors")
    assert made.files == ["weights.safetensors"]
    expected = {name[6:]: tensor for name, tensor in TENSORS.items() if name.startswith("model/")}
    assert_same_tensors(read(tmp_path, "weights.safetensors"), expected)


def test_what_would_lose_a_tensor_is_refused() -> None:
    part = part_of(saved({"a": {"w": torch.ones(1)}, "w": torch.ones(2), "raw": b"x"}))
    with pytest.raises(InvalidInput, match="two tensors would be called 'w'"):
        choose(part, None, "a/")
    with pytest.raises(InvalidInput, match="cannot be called ''"):
        choose(part, ["w"], "w")
    with pytest.raises(InvalidInput, match="no name begins with 'b/'"):
        choose(part, None, "b/")
    with pytest.raises(InvalidInput, match="no tensor of the checkpoint matches"):
        choose(part, ["nothing*"])
    with pytest.raises(InvalidInput, match="no tensor of the checkpoint is to be exported"):
        choose(part, ["raw"])


def test_a_type_that_safetensors_lacks_is_refused_by_name() -> None:
    part = part_of(saved({"z": torch.zeros(2, dtype=torch.complex128), "w": torch.ones(1)}))
    with pytest.raises(InvalidInput, match="no complex128, which 'z' is of"):
        choose(part)
    assert [name for name, _ in choose(part, ["w"]).named] == ["w"]


def test_several_files_with_an_index(tmp_path: Path) -> None:
    tensors = {f"layer{n}": torch.full((10,), float(n)) for n in range(5)} | {"large": torch.ones(100)}
    made = export(saved(tensors), tmp_path, shard_bytes=80)
    assert made.files == [*(f"model-0000{n}-of-00004.safetensors" for n in (1, 2, 3, 4)), INDEX]
    index = json.loads((tmp_path / INDEX).read_text("utf-8"))
    assert index["metadata"]["total_size"] == 600
    assert index["weight_map"]["large"] == "model-00004-of-00004.safetensors"
    for name, file in index["weight_map"].items():
        assert_same_tensors({name: read(tmp_path, file)[name]}, {name: tensors[name]})
    assert set(index["weight_map"]) == set(tensors)
    assert export(saved(tensors), tmp_path / "one", shard_bytes=600).files == ["model.safetensors"]


def test_views_are_written_as_what_they_are(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    state = {"whole": whole, "row": whole[2], "column": whole[:, 1], "turned": whole.t(), "part": whole[1:3, 2:4]}
    back = np.arange(6)[::-1]
    export(saved(state | {"back": back}), tmp_path)
    assert_same_tensors(read(tmp_path), state | {"back": torch.from_numpy(back.copy())})


def test_tied_tensors_are_written_under_each_name_or_once(tmp_path: Path) -> None:
    tied = torch.randn(4)
    store = saved({"a": tied, "b": tied, "c": tied.clone()})
    export(store, tmp_path / "each")
    assert_same_tensors(read(tmp_path / "each"), {"a": tied, "b": tied, "c": tied})
    export(store, tmp_path / "once", tied_once=True)
    assert set(read(tmp_path / "once")) == {"a", "c"}
    export(store, tmp_path / "second", tied_once=True, keys=["b"])
    assert set(read(tmp_path / "second")) == {"b"}


def test_large_tensors_and_references_are_followed(tmp_path: Path) -> None:
    large = torch.arange(5 * CHUNK_BYTES // 8 + 3)
    storage = MemoryStorage()
    saved({"large": large, "n": torch.zeros(3)}, storage, 1, incremental=True)
    store = saved({"large": large, "n": torch.ones(3)}, storage, 2, incremental=True)
    assert background.run(store.metadata(Folder(2))).references
    export(store, tmp_path, step=2)
    assert_same_tensors(read(tmp_path), {"large": large, "n": torch.ones(3)})


def test_damage_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    store = saved(STATE)
    (key,) = (e.path for e in BlockingStorage(store.storage).list_all() if e.path.endswith(".safetensors"))
    data = bytearray(BlockingStorage(store.storage).read(key))
    data[4096] ^= 1  # the first byte behind the header
    BlockingStorage(store.storage).write(key, data)
    with pytest.raises(CheckpointDamaged):
        export(store, tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != "lock"]


def test_bytes_have_no_other_format() -> None:
    with pytest.raises(InvalidInput, match=r"is a state of bytes.*step_1/model\.bin"):
        part_of(saved(b"bytes"))


# -- transformers' folders -------------------------------------------------------------------------------------------

CONFIG = {"model_type": "llama", "hidden_size": 4, "dtype": torch.bfloat16, "eos": (1, 2), "nested": {"a": None}}


def export_folder(store: Store, target: Path, **how: Any) -> Exported:
    return background.run(export_hf(store, Folder(1), part_of(store), LocalStorage(target), **how))


@pytest.mark.parametrize("key", KEYS)
def test_a_configuration_in_the_state_becomes_config_json(tmp_path: Path, key: str) -> None:
    store = saved({"model": {"module.a.weight": torch.ones(2)}, "optimizer": {"x": torch.ones(1)}, key: CONFIG})
    made = export_folder(store, tmp_path)
    assert made.files == ["model.safetensors", "config.json"]
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert config == {**CONFIG, "dtype": "bfloat16", "eos": [1, 2]}
    assert set(read(tmp_path)) == {"a.weight"}


def test_names_become_those_of_parameters(tmp_path: Path) -> None:
    tree = {"_orig_mod.a": torch.ones(1), "layers": {"0": {"weight": torch.ones(1)}}}
    export_folder(saved({"model": tree, "config": CONFIG}), tmp_path / "default")
    assert set(read(tmp_path / "default")) == {"a", "layers.0.weight"}
    store = saved({"ema": tree, "config": CONFIG})
    export_folder(store, tmp_path / "all")
    assert set(read(tmp_path / "all")) == {"ema.a", "ema.layers.0.weight"}
    export_folder(store, tmp_path / "said", keys=["ema/layers/*"], strip="ema/layers/")
    assert set(read(tmp_path / "said")) == {"0.weight"}


def test_a_folder_gives_its_configuration_and_its_tokenizer_but_no_weights(tmp_path: Path) -> None:
    config = tmp_path / "config"
    (config / "below").mkdir(parents=True)
    kept = ("config.json", "generation_config.json", "tokenizer.json", "vocab.txt", "spiece.model")
    for name in kept:
        (config / name).write_text("{}")
    for name in ("old.safetensors", "pytorch_model.bin", "model.safetensors.index.json", ".hidden", "below/x.json"):
        (config / name).write_text("not this")
    assert set(files_beside(config)) == set(kept)
    made = export_folder(saved({"w": torch.ones(1)}), tmp_path / "out", config_folder=config)
    assert made.files[-1] == "config.json"
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} == {*kept, "model.safetensors"}
    with pytest.raises(InvalidInput, match=r"there is no config\.json in"):
        files_beside(tmp_path)


def test_ties_are_written_once_only_where_transformers_ties_them_again(tmp_path: Path) -> None:
    tied = torch.ones(3)
    for says, names in ((True, {"embed"}), (False, {"embed", "head"}), (None, {"embed", "head"})):
        config = {"model_type": "x"} | ({} if says is None else {"tie_word_embeddings": says})
        export_folder(saved({"model": {"embed": tied, "head": tied}, "config": config}), tmp_path / str(says))
        assert set(read(tmp_path / str(says))) == names


def test_without_a_configuration_nothing_is_written(tmp_path: Path) -> None:
    for state in ({"w": torch.ones(1)}, {"w": torch.ones(1), "config": {"lr": 0.1}}, [torch.ones(1)]):
        with pytest.raises(InvalidInput, match=r"transformers needs a config\.json"):
            export_folder(saved(state), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"config\.json is no configuration"):
        export_folder(saved({"w": torch.ones(1)}), tmp_path / "out", config_folder=tmp_path / "config")
    with pytest.raises(InvalidInput, match="holds an array"):
        config_in(part_of(saved({"config": {"model_type": "x", "array": torch.ones(1)}})))
