"""Checkpoints of other formats taken in: the same tensors, whole or not at all, and no code run."""

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.differences import compare, read_contents
from strata.checkpoint.exporting import choose, export_safetensors, tree_in
from strata.checkpoint.importing import Imported, ImportOptions, import_checkpoint, open_foreign
from strata.checkpoint.manifest import CHUNK_BYTES
from strata.checkpoint.store import Folder, Store
from strata.errors import Conflict, InvalidInput, ObjectNotFound, Unstorable
from strata.storage import BlockingStorage, LocalStorage, MemoryStorage, StorageBackend
from strata.storage.memory import named_space
from tests.unit.checkpoint.dying import deaths
from tests.unit.checkpoint.states import assert_same

OPTIONS = ImportOptions()


async def _take(source: Path | str, goal: StorageBackend, step: int, options: ImportOptions, epoch: int) -> Imported:
    async with open_foreign(os.fspath(source), options) as foreign:
        return await import_checkpoint(foreign, Store(goal, "default"), step, epoch)


def take(
    source: Path | str, goal: StorageBackend, step: int = 1, options: ImportOptions = OPTIONS, epoch: int = 0
) -> Imported:
    return background.run(_take(source, goal, step, options, epoch))


def taken(source: Path | str, **options: Any) -> Any:
    """What is loaded after it was taken in."""
    goal = MemoryStorage()
    take(source, goal, options=ImportOptions(**options))
    with CheckpointReader(goal) as reader:
        reader.verify()
        return reader.load()


# -- safetensors -----------------------------------------------------------------------------------------------------

WEIGHTS = {
    "model/a.weight": torch.randn(5, 3),
    "model/a.bias": torch.randn(5).bfloat16(),
    "step": torch.tensor(7),
    "model/deep/empty": torch.zeros(0, 2),
    "large": torch.arange(CHUNK_BYTES // 2),
}
TREE = {
    "model": {
        "a.weight": WEIGHTS["model/a.weight"],
        "a.bias": WEIGHTS["model/a.bias"],
        "deep": {"empty": WEIGHTS["model/deep/empty"]},
    },
    "step": WEIGHTS["step"],
    "large": WEIGHTS["large"],
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    save_file(WEIGHTS, path)
    return path


def test_names_of_more_levels_than_a_state_has_are_refused(tmp_path: Path) -> None:
    """It would be taken in, and never loaded."""
    path = tmp_path / "deep.safetensors"
    save_file({"/".join("a" * 200): torch.ones(1), "b": torch.ones(2)}, path)
    with pytest.raises(InvalidInput, match=r"more than 128 levels\. Leave that out by choosing keys"):
        taken(path)
    assert_same(taken(path, keys=["b"]), {"b": torch.ones(2)})


def test_a_file_becomes_a_tree(weights: Path) -> None:
    assert_same(_sorted(taken(weights)), _sorted(TREE))


def test_what_is_told_of_it(weights: Path) -> None:
    goal = MemoryStorage()
    made = take(weights, goal, step=40, epoch=3)
    assert made == Imported(Folder(40), sum(tensor.nbytes for tensor in WEIGHTS.values()), 5)
    with CheckpointReader(goal) as reader:
        told = reader.describe()
        assert (told.step, told.epoch, told.term, told.references) == (40, 3, 0, [])
    with CheckpointManager(goal) as job:
        job.load()
        job.save({"next": 1}, step=41)
        assert job.list_checkpoints() == [40, 41]


def test_a_part_of_it_under_another_key_and_as_numpy(weights: Path) -> None:
    found = taken(weights, keys=["start/here/model/*", "start/here/step"], under="start/here", package="numpy")
    here = found["start"]["here"]
    assert set(here) == {"model", "step"}
    assert isinstance(here["step"], np.ndarray)
    with pytest.raises(InvalidInput, match="no tensor of the checkpoint matches"):
        taken(weights, keys=["nothing"])
    with pytest.raises(InvalidInput, match="arrays are of numpy, torch"):
        taken(weights, package="cupy")


def test_names_that_cannot_be_a_tree_stay_names(tmp_path: Path) -> None:
    tensors = {
        "a": torch.ones(1),
        "a/b": torch.ones(2),
        "/c": torch.ones(3),
        "50%": torch.ones(4),
        "x@y": torch.ones(5),
    }
    save_file(tensors, tmp_path / "odd.safetensors")
    assert set(taken(tmp_path / "odd.safetensors")) == set(tensors)


def test_out_and_in_again_is_the_same(tmp_path: Path) -> None:
    state = {
        "model": {"a/b": torch.randn(3), "%": torch.ones(1), "list": {"0": torch.zeros(2)}},
        "x": torch.ones(4).half(),
    }
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(state, step=1)
    store = Store(storage, "default")
    _, part = background.run(tree_in(store, Folder(1)))
    background.run(export_safetensors(store, Folder(1), part, choose(part), LocalStorage(tmp_path), shard_bytes=10))
    assert_same(_sorted(taken(tmp_path)), _sorted(state))
    goal = MemoryStorage()
    take(tmp_path, goal)
    contents = [background.run(read_contents(Store(each, "default"), Folder(1))) for each in (storage, goal)]
    assert not compare(*contents)


def _sorted(tree: Any) -> Any:
    return {key: _sorted(tree[key]) for key in sorted(tree)} if isinstance(tree, dict) else tree


def test_a_folder_of_files_with_and_without_an_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "two.safetensors")
    assert set(taken(tmp_path)) == {"a", "b"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"b": "two.safetensors"}}))
    assert set(taken(tmp_path)) == {"b"}
    index.write_text(json.dumps({"weight_map": {"b": "one.safetensors"}}))
    with pytest.raises(InvalidInput, match=r"says that 'b' is in 'one\.safetensors', and it is not"):
        taken(tmp_path)
    index.write_text(json.dumps({"weight_map": {"b": "three.safetensors"}}))
    with pytest.raises(InvalidInput, match=r"names 'three\.safetensors', which is not there"):
        taken(tmp_path)
    index.write_text(json.dumps({"weight_map": {"b": "../two.safetensors"}}))
    with pytest.raises(InvalidInput, match="cannot be a key"):
        taken(tmp_path)
    index.write_text("{}")
    with pytest.raises(InvalidInput, match="is no index of safetensors files"):
        taken(tmp_path)
    index.unlink()
    save_file({"a": torch.ones(2)}, tmp_path / "two.safetensors")
    with pytest.raises(InvalidInput, match=r"'a' is in one\.safetensors and in two\.safetensors"):
        taken(tmp_path)


def test_from_any_storage() -> None:
    storage = MemoryStorage(space=named_space("imports"), name="imports")
    from safetensors.torch import save

    BlockingStorage(storage).write("sub/w.safetensors", save({"w": torch.ones(3)}))
    assert torch.equal(taken("memory://imports/sub/w.safetensors")["w"], torch.ones(3))
    assert set(taken("memory://imports/sub")) == {"w"}
    with pytest.raises(ObjectNotFound):
        taken("memory://imports/nothing.safetensors")
    with pytest.raises(ObjectNotFound):
        taken("memory://imports/nothing")


def header(entries: Any, data: bytes = b"") -> bytes:
    told = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return len(told).to_bytes(8, "little") + told + data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no safetensors file"),
        (b"short", "is no safetensors file"),
        (b"\xff" * 100, "its header cannot be"),
        (header(b"{" * 10), "its header is not what it should be"),
        (header({"w": {"dtype": "F32"}}), "its header is not what it should be"),
        (header([1, 2]), "its header is not what it should be"),
        (header({"w": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "is of type F7"),
        (header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)), "its shape needs 8"),
        (header({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, bytes(4)), "its shape needs"),
        (header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)), "is cut off: tensor 'w'"),
    ],
)
def test_what_is_no_safetensors_file_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        taken(tmp_path / "x.safetensors")


def test_a_file_that_is_replaced_meanwhile_makes_no_checkpoint(weights: Path) -> None:
    goal = MemoryStorage()

    async def replace_it() -> None:
        async with open_foreign(str(weights)) as foreign:
            save_file({name: torch.zeros_like(tensor) for name, tensor in WEIGHTS.items()}, weights)
            await import_checkpoint(foreign, Store(goal, "default"), 1)

    with pytest.raises(InvalidInput, match="was replaced while it was read"):
        background.run(replace_it())
    assert not [*BlockingStorage(goal).list_all()]


def test_a_folder_without_anything_to_import_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InvalidInput, match="nothing can be imported"):
        taken(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match=r"name a file of torch's itself, .*/pytorch_model\.bin"):
        taken(tmp_path)


# -- transformers' folders -------------------------------------------------------------------------------------------


def test_a_folder_of_transformers_keeps_its_configuration(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 4, "rope": {"theta": 1e4, "names": ["a", None]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.embed.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    found = taken(tmp_path)
    assert found["config"] == config
    assert set(found["model"]) == {"model.embed.weight"}
    assert set(taken(tmp_path, under="")) == {"model.embed.weight", "config"}
    assert set(taken(tmp_path, keys=["model/*"])) == {"model"}
    (tmp_path / "config.json").write_text("no json")
    with pytest.raises(InvalidInput, match=r"config\.json is no configuration"):
        taken(tmp_path)


# -- torch's files ---------------------------------------------------------------------------------------------------


def test_a_file_of_torch_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    weight = torch.randn(300, 50)
    model = torch.nn.Linear(4, 2)
    state = {
        "model": OrderedDict(model.state_dict()),
        "weight": weight,
        "tied": weight,
        "turned": weight.t(),
        "optimizer": {"param_groups": [{"lr": 0.1, "params": [0, 1]}], "state": {0: {"step": torch.tensor(3.0)}}},
        "large": torch.arange(3 * CHUNK_BYTES // 8 + 1),
    }
    torch.save(state, tmp_path / "x.pt")
    found = taken(tmp_path / "x.pt")
    assert_same(found, state)
    assert found["tied"].data_ptr() == found["weight"].data_ptr()
    assert set(taken(tmp_path / "x.pt", keys=["model/*", "optimizer/param_groups/0/lr"], under="old")["old"]) == {
        "model",
        "optimizer",
    }


class Evil:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_a_file_of_torch_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1), "x": Evil(tmp_path / "owned")}, tmp_path / "x.pt")
    with pytest.raises(InvalidInput, match="that could run code"):
        taken(tmp_path / "x.pt")
    assert not (tmp_path / "owned").exists()


def test_what_is_no_file_of_torch_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidInput, match=r"x\.pt"):
        taken(tmp_path / "x.pt")
    (tmp_path / "x.pth").write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    with pytest.raises(InvalidInput, match=r"x\.pth"):
        taken(tmp_path / "x.pth")
    assert not (tmp_path / "owned").exists()
    with pytest.raises(InvalidInput, match="there is no file"):
        taken(tmp_path / "nope.pt")
    with pytest.raises(InvalidInput, match="files of this machine only"):
        taken("s3://bucket/x.pt")


def test_a_file_of_torch_with_what_no_checkpoint_holds_is_refused(tmp_path: Path) -> None:
    torch.save({"sparse": torch.eye(3).to_sparse()}, tmp_path / "x.pt")
    with pytest.raises(Unstorable, match="sparse"):
        taken(tmp_path / "x.pt")


# -- there or not ----------------------------------------------------------------------------------------------------


def test_the_same_again_is_there_already_and_another_is_refused(tmp_path: Path, weights: Path) -> None:
    goal = MemoryStorage()
    take(weights, goal)
    assert take(weights, goal).was_there
    other = {**WEIGHTS, "step": torch.tensor(8)}
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(Conflict, match="step 1 is committed already"):
        take(tmp_path / "other.safetensors", goal)
    with pytest.raises(Conflict):
        take(weights, goal, options=ImportOptions(under="elsewhere"))
    with pytest.raises(InvalidInput, match="step must be at least 0"):
        take(weights, goal, step=-1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_call_leaves_it_or_nothing_and_repeating_succeeds(tmp_path: Path, after: bool) -> None:
    save_file({"a": torch.ones(50), "b": torch.zeros(3)}, tmp_path / "x.safetensors")
    outcomes = set()
    for inner in deaths(lambda storage: take(tmp_path / "x.safetensors", storage, 2), MemoryStorage, after=after):
        with CheckpointReader(inner) as reader:
            steps = reader.list_checkpoints()
            outcomes.add(bool(steps))
            for step in steps:
                reader.verify(step)
            assert take(tmp_path / "x.safetensors", inner, 2).was_there == bool(steps)
            assert torch.equal(reader.load(2)["a"], torch.ones(50))
    assert outcomes == {False, True}
