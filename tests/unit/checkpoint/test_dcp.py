"""Folders of torch.distributed.checkpoint: written so that torch loads them, read without running what is in them."""

import io
import os
import pickle
import weakref
from collections import namedtuple
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.exporting import SINGLE, Exported, Meter, choose, export_safetensors, tree_in
from strata.checkpoint.foreign import dcp_writing
from strata.checkpoint.foreign.dcp_metadata import read_dcp_metadata
from strata.checkpoint.foreign.dcp_writing import export_dcp
from strata.checkpoint.importing import ImportOptions, import_checkpoint, open_foreign
from strata.checkpoint.leaves import LeafSupply
from strata.checkpoint.marks import PerRank, Replicated
from strata.checkpoint.store import Folder, Store
from strata.errors import CheckpointDamaged, InvalidInput
from strata.integrations.dcp import StrataWriter
from strata.storage import BlockingStorage, LocalStorage, MemoryStorage
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.states import assert_same
from tests.unit.integrations.ranks import columns, rows, save_together

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

Pair = namedtuple("Pair", "left right")


def training() -> dict[str, Any]:
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 5}


def saved(state: Any) -> Store:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(state, step=1)
    return Store(storage, "default")


def export(store: Store, target: Path, **how: Any) -> Exported:
    _, part = background.run(tree_in(store, Folder(1)))
    return background.run(export_dcp(store, Folder(1), part, str(target), **how))


def zeros(state: Any) -> Any:
    """The same shapes, to be loaded into."""
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: zeros(each) for key, each in state.items()}
    return [zeros(each) for each in state] if isinstance(state, list) else None


def loaded_by_torch(target: Path, state: Any) -> Any:
    into = zeros(state)
    dcp.load(into, storage_reader=FileSystemReader(target), no_dist=True)
    return into


def taken(source: Path, **options: Any) -> Any:
    goal = MemoryStorage()

    async def take() -> None:
        async with open_foreign(str(source), ImportOptions(**options)) as foreign:
            assert foreign.format == "dcp"
            await import_checkpoint(foreign, Store(goal, "default"), 1)

    background.run(take())
    with CheckpointReader(goal) as reader:
        reader.verify()
        return reader.load()


def save_by_torch(state: Any, target: Path) -> None:
    dcp.save(state, storage_writer=FileSystemWriter(target), no_dist=True)


# -- out -------------------------------------------------------------------------------------------------------------


def test_torch_loads_what_is_exported(tmp_path: Path) -> None:
    state = training()
    seen: list[int] = []
    expected: list[int] = []
    made = export(saved(state), tmp_path / "out", meter=Meter(expected.append, seen.append))
    assert made.files == [".metadata", "__0_0_0.distcp"]
    assert (made.tensors, expected, sum(seen)) == (8, [made.bytes], made.bytes)
    found = loaded_by_torch(tmp_path / "out", state)
    assert_same(found["model"], dict(state["model"]))
    assert_same(found["optimizer"]["state"], state["optimizer"]["state"])
    assert found["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    assert found["step"] == 5


def test_it_is_the_same_as_if_torch_had_saved_it(tmp_path: Path) -> None:
    state = training() | {"list": [torch.ones(2), 3], "tuple": (1, 2.5), "none": None, "text": "x"}
    save_by_torch(state, tmp_path / "torch")
    export(saved(state), tmp_path / "strata")
    mine, theirs = (FileSystemReader(tmp_path / name).read_metadata() for name in ("strata", "torch"))
    assert mine.state_dict_metadata == theirs.state_dict_metadata
    assert mine.planner_data == theirs.planner_data


def test_what_several_ranks_saved_is_exported_whole(tmp_path: Path) -> None:
    storage, big = MemoryStorage(), torch.arange(1 << 20, dtype=torch.float32).reshape(1024, -1)
    with Crew(storage, 3) as crew:
        crew.save([{"big": Replicated(big), "own": PerRank({"n": np.arange(2) + rank})} for rank in range(3)], 1)
    wide, long = torch.arange(35.0).reshape(5, 7), torch.arange(9)
    states = [{"m": {"wide": columns(wide, rank, 3), "long": rows(long, rank, 3)}, "step": 5} for rank in range(3)]
    save_together(states, [StrataWriter(storage, step=1, job_id="other") for _ in states])
    export(Store(storage, "default"), tmp_path / "one")
    found = loaded_by_torch(tmp_path / "one", {"big": big, "own": {"n": torch.zeros(2, dtype=torch.int64)}})
    assert_same(found, {"big": big, "own": {"n": torch.arange(2)}})
    export(Store(storage, "other"), tmp_path / "other")
    expected = {"m": {"wide": wide, "long": long}, "step": 5}
    assert_same(loaded_by_torch(tmp_path / "other", expected), expected)
    _, part = background.run(tree_in(Store(storage, "other"), Folder(1)))
    target = LocalStorage(tmp_path)
    background.run(export_safetensors(Store(storage, "other"), Folder(1), part, choose(part), target))
    assert_same(load_file(tmp_path / SINGLE)["m/wide"], wide)


def test_arrays_of_all_kinds_views_and_odd_containers_go_along(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        "numpy": np.arange(3),
        "whole": whole,
        "turned": whole.t(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "raw": b"bytes",
        "number": np.float32(2),
        "pair": Pair(1, "b"),
    }
    export(saved(state), tmp_path / "out")
    into = {"numpy": torch.zeros(3, dtype=torch.int64), "turned": torch.zeros(4, 3), "parameter": torch.zeros(2)}
    found: dict[str, Any] = into | dict.fromkeys(("raw", "number", "pair"))
    dcp.load(found, storage_reader=FileSystemReader(tmp_path / "out"), no_dist=True)
    assert_same(found["turned"], whole.t())
    assert found["numpy"].tolist() == [0, 1, 2]
    assert found["parameter"].tolist() == [1, 1]
    assert (found["raw"], found["number"], found["pair"]) == (b"bytes", 2, (1, "b"))


def test_a_few_tensors_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    most = 0
    whole = LeafSupply.whole

    async def watched(self: LeafSupply, number: int) -> Any:
        nonlocal most
        block = await whole(self, number)
        alive.add(number)
        weakref.finalize(block, alive.discard, number)
        most = max(most, len(alive))
        return block

    monkeypatch.setattr(LeafSupply, "whole", watched)
    monkeypatch.setattr(dcp_writing, "FILE_BYTES", 9000)
    state = {f"w{n}": torch.randn(1000) for n in range(20)} | {"large": torch.randn(5000)}
    made = export(saved(state), tmp_path / "out")
    assert 1 <= most <= 3
    assert len(made.files) == 12
    assert_same(loaded_by_torch(tmp_path / "out", state), state)


def test_keys_choose_tensors_and_values(tmp_path: Path) -> None:
    state = training()
    export(saved(state), tmp_path / "out", wants=lambda name: name.startswith("model/") or name == "step")
    found = FileSystemReader(tmp_path / "out").read_metadata()
    assert set(found.state_dict_metadata) == {"model.weight", "model.bias", "step"}


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(InvalidInput, match="exists already"):
            export(saved({"w": torch.ones(1)}), target)
    with pytest.raises(InvalidInput, match="is no dict but a list"):
        export(saved([torch.ones(1)]), tmp_path / "out")


def test_damage_is_an_error_and_leaves_nothing_in_the_way_of_the_next_try(tmp_path: Path) -> None:
    store = saved({"w": torch.ones(100)})
    (key,) = (e.path for e in BlockingStorage(store.storage).list_all() if e.path.endswith(".safetensors"))
    data = bytearray(BlockingStorage(store.storage).read(key))
    data[-1] ^= 1
    BlockingStorage(store.storage).write(key, data)
    with pytest.raises(CheckpointDamaged, match="tensor 'w'"):
        export(store, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    data[-1] ^= 1
    BlockingStorage(store.storage).write(key, data)
    export(store, tmp_path / "out")


# -- in --------------------------------------------------------------------------------------------------------------


def test_what_torch_saved_is_imported(tmp_path: Path) -> None:
    state = training() | {
        "list": [torch.ones(2), 3, {"z": torch.zeros(1)}],
        "tuple": (1, 2.5),
        "half": torch.ones(3).half(),
    }
    save_by_torch(state, tmp_path / "in")
    found = taken(tmp_path / "in")
    assert_same(dict(found["model"]), dict(state["model"]))
    assert {int(key): each for key, each in found["optimizer"]["state"].items()}.keys() == {0, 1}
    assert found["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    assert_same(found["list"], state["list"])
    assert (found["step"], found["tuple"]) == (5, (1, 2.5))
    assert_same(found["half"], state["half"])


def test_what_several_ranks_saved_with_torch_is_imported(tmp_path: Path) -> None:
    wide, long, few = torch.arange(35.0).reshape(5, 7), torch.arange(9), torch.ones(2)
    states = [
        {"wide": columns(wide, rank, 4), "long": rows(long, rank, 4), "few": rows(few, rank, 4), "list": [few, 3]}
        for rank in range(4)
    ]
    save_together(states, [FileSystemWriter(tmp_path / "in") for _ in states])
    assert len(list((tmp_path / "in").glob("*.distcp"))) > 2
    found = taken(tmp_path / "in")
    assert_same({key: found[key] for key in states[0]}, {"wide": wide, "long": long, "few": few, "list": [few, 3]})


def test_out_and_in_again_is_the_same(tmp_path: Path) -> None:
    state = {"model": {"a": torch.randn(3, 4), "b": torch.ones(2).bfloat16()}, "step": 3, "names": ["x", "y"]}
    export(saved(state), tmp_path / "out")
    assert_same({key: taken(tmp_path / "out")[key] for key in state}, state)


def test_a_part_of_it_under_another_key(tmp_path: Path) -> None:
    save_by_torch(training(), tmp_path / "in")
    found = taken(tmp_path / "in", keys=["old/model/*"], under="old")
    assert {key: set(found[key]["model"]) for key in found} == {"old": {"weight", "bias"}}


def test_a_folder_that_is_not_whole_is_told(tmp_path: Path) -> None:
    save_by_torch(training(), tmp_path / "in")
    (file,) = (tmp_path / "in").glob("*.distcp")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidInput, match="is cut off"):
        taken(tmp_path / "in")
    file.write_bytes(bytes(len(data)))
    with pytest.raises(InvalidInput, match="'optimizer/param_groups/0/lr'"):
        taken(tmp_path / "in")
    file.unlink()
    with pytest.raises(InvalidInput, match=r"is missing, and \.metadata says that it is needed"):
        taken(tmp_path / "in")


# -- malice ----------------------------------------------------------------------------------------------------------


class Calls:
    """Whoever unpickles it calls this."""

    def __init__(self, what: Any, *given: Any) -> None:
        self._call = what, given

    def __reduce__(self) -> Any:
        return self._call


def metadata_of(path: Path) -> Metadata:
    save_by_torch({"w": torch.ones(2), "n": 1}, path)
    return FileSystemReader(path).read_metadata()


@pytest.mark.parametrize("where", ["alone", "planner_data", "state_dict_metadata", "storage_data"])
def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(tmp_path: Path, where: str) -> None:
    evil: Any = Calls(os.mkdir, str(tmp_path / "owned"))
    found: Any = evil
    if where != "alone":
        found = metadata_of(tmp_path / "in")
        setattr(found, where, {"w": evil})
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(InvalidInput, match=r"is not read: it asks for posix\.mkdir.* It may be malicious"):
        taken(tmp_path / "in")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"\x80\x04\x8c\x05torch\x8c\x04load\x93.",
        b"\x80\x04\x8c\x05torch\x8c\x0eSize.__class__\x93.",
        b"\x80\x04\x8c\x0btorch.utils\x8c\x10data.get_worker_\x93.",
        b"ctorch.distributed.checkpoint.metadata\nos\n.",
        b"ctorch.distributed.checkpoint.filesystem\nFileSystem\n.",
    ],
)
def test_no_name_beyond_the_few_is_found(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="It may be malicious"):
        read_dcp_metadata(data, "here")


def test_a_pickle_that_asks_for_all_memory_is_refused() -> None:
    with pytest.raises(InvalidInput, match="it numbers an object"):
        read_dcp_metadata(b"\x80\x04}r\xff\xff\xff\xff.", "here")


def test_a_reference_to_outside_is_refused() -> None:
    with pytest.raises(InvalidInput, match="here is not what torch writes"):
        read_dcp_metadata(b"Pname\n.", "here")


def test_a_value_that_would_run_code_is_refused_by_name(tmp_path: Path) -> None:
    save_by_torch({"w": torch.ones(2), "bad": Calls(os.mkdir, str(tmp_path / "owned"))}, tmp_path / "in")
    with pytest.raises(InvalidInput, match="'bad' holds more than tensors and plain values"):
        taken(tmp_path / "in")
    assert not (tmp_path / "owned").exists()
    assert set(taken(tmp_path / "in", keys=["w"])) == {"w"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: setattr(m, "storage_data", None), "NoneType stands where a dict should"),
        (lambda m: m.storage_data.clear(), "is of no version of torch's that is known here"),
        (lambda m: setattr(m.state_dict_metadata["w"], "size", torch.Size([3])), "are not all of it"),
        (lambda m: setattr(m.state_dict_metadata["w"].chunks[0], "sizes", torch.Size([3])), "lies outside of it"),
        (lambda m: setattr(m.state_dict_metadata["w"].properties, "dtype", torch.quint8), "It may be malicious"),
        (lambda m: [setattr(each, "length", 5) for each in m.storage_data.values()], "has only 5 bytes"),
        (lambda m: [setattr(each, "length", 2**62) for each in m.storage_data.values()], "is cut off"),
        (lambda m: m.state_dict_metadata.update(w=5), "int stands where TensorMetadata should"),
        (lambda m: m.planner_data.update(w=("a", 2.5)), "'w' has no path"),
        (lambda m: [setattr(each, "offset", -1) for each in m.storage_data.values()], "-1 is no size"),
        (
            lambda m: [setattr(each, "transform_descriptors", ["zstd"]) for each in m.storage_data.values()],
            "is stored by an extension",
        ),
        (lambda m: [setattr(each, "relative_path", "../x") for each in m.storage_data.values()], "cannot be a key"),
    ],
)
def test_metadata_that_makes_no_sense_is_told(tmp_path: Path, change: Any, words: str) -> None:
    found = metadata_of(tmp_path / "in")
    change(found)
    (tmp_path / "in" / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(InvalidInput, match=words):
        taken(tmp_path / "in")


def test_a_shard_of_another_shape_than_said_is_refused(tmp_path: Path) -> None:
    found = metadata_of(tmp_path / "in")
    (index,) = (each for each in found.storage_data if each.fqn == "w")
    place = found.storage_data[index]
    stream = io.BytesIO()
    torch.save(torch.ones(5), stream)
    file = tmp_path / "in" / place.relative_path
    place.offset, place.length = file.stat().st_size, len(stream.getvalue())
    file.write_bytes(file.read_bytes() + stream.getvalue())
    (tmp_path / "in" / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(InvalidInput, match=r"a shard of 'w' is not what \.metadata says"):
        taken(tmp_path / "in")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("dcp")
    save_by_torch(training(), folder / "in")
    return (folder / "in" / ".metadata").read_bytes()


@given(at=st.integers(0, 10_000), what=st.binary(max_size=6))
def test_whatever_the_bytes_are_they_are_read_or_refused(sound: bytes, at: int, what: bytes) -> None:
    at %= len(sound)
    for data in (sound[:at], sound[:at] + what + sound[at + len(what) :], what):
        with suppress(InvalidInput):  # and nothing else
            read_dcp_metadata(data, "here")
