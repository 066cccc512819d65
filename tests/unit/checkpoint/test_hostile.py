"""A checkpoint from an attacker: every field of every manifest says what it likes, under digests that match.

Guards against: metadata that is code when it is loaded (pytorch 189308), a read or write outside the folder, memory
taken for what is not there. What comes back is a state, CheckpointDamaged or InvalidInput, and nothing else.
"""

import re
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.exporting import choose, tree_in
from strata.checkpoint.foreign.dcp_writing import export_dcp
from strata.checkpoint.leaves import LeafSupply, leaves_of
from strata.checkpoint.manifest import CHUNK_BYTES, digest_of
from strata.checkpoint.pruning import pruned
from strata.checkpoint.skeleton import array_kinds, plain_values, shown
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.tree import MAKERS
from strata.checkpoint.whole import Whole
from strata.errors import CheckpointDamaged, InvalidInput, NotFound
from strata.storage import BlockingStorage, LocalStorage, MemoryStorage, StorageBackend
from tests.unit.checkpoint.forging import TRIED, Forgery, lies, put, with_digest
from tests.unit.checkpoint.states import assert_same

BASE = np.arange(12.0)
STATE = {
    "w": torch.arange(6.0).reshape(2, 3),
    "base": BASE,
    "view": BASE[2:8:2],
    "again": BASE,
    "date": np.array(["2026-01-01"], "datetime64[D]"),
    "plain": {"n": 3, "t": (1, None), "raw": b"raw", "s": {1, 2}, "big": 2**70, "d": torch.float32},
    "pairs": {1: "one", (2, 3): "two"},
    "scalar": np.float32(1.5),
}
PEACEFUL_BYTES = 48 << 20
"""More than a load of these few bytes takes, verification and all."""


def saved() -> MemoryStorage:
    """Two checkpoints: the first is peaceful, the second will be forged."""
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save({"good": 1}, step=1)
        manager.save(STATE, step=2)
    return storage


def read_everything(storage: StorageBackend) -> Exception | None:
    """Every way of reading step 2; the first refusal, if any."""
    refused: Exception | None = None
    into = {"w": torch.zeros(2, 3)}
    with CheckpointReader(storage) as reader:
        for read in (
            lambda: reader.load(2),
            lambda: reader.load(2, keys="*"),
            lambda: reader.load(2, into=into, strict=False),
            lambda: reader.load(2, like=into, strict=False),
            lambda: reader.load_slice("w", (slice(1, 2), 0), 2),
            lambda: reader.load_slice("view", 0, 2),
            lambda: reader.verify(2),
            lambda: reader.describe(2),
            lambda: look_at(storage),
        ):
            try:
                read()
            except (CheckpointDamaged, InvalidInput, NotFound) as error:
                refused = refused or error
    return refused


def look_at(storage: StorageBackend) -> None:
    """As the command line does, and the ways to other formats."""
    store = Store(storage, "default")
    _, part = background.run(tree_in(store, Folder(2)))
    assert array_kinds(part.skeleton).keys() == set(range(len(part.leaves)))
    for node in plain_values(part.skeleton).values():
        shown(node)
    pruned(part.skeleton, lambda number: True, lambda name: False)
    pruned(part.skeleton, lambda number: False, lambda name: True)
    choose(part, "w")


some_and_all = pytest.mark.parametrize("how_many", ["some", pytest.param("all", marks=pytest.mark.long)])


@pytest.mark.slow
@some_and_all
@pytest.mark.parametrize("manifest", ["part", "metadata"])
@pytest.mark.usefixtures("little_room")
def test_whatever_a_manifest_says_it_is_a_state_or_a_clear_error(manifest: str, how_many: str) -> None:
    storage = saved()
    forged = Forgery(storage, 2)
    told, say = getattr(forged, manifest), getattr(forged, f"say_in_{manifest}")
    refused = 0
    for way, lie in lies(told, how_many):
        say(put(told, way, lie))
        refused += read_everything(storage) is not None
    assert refused > TRIED // 4


@some_and_all
def test_whatever_the_lineage_says_it_is_a_line_or_a_clear_error(how_many: str) -> None:
    storage = saved()
    blocking, key = BlockingStorage(storage), "default/checkpoints/lineage.json"
    told = msgspec.json.decode(blocking.read(key))
    for way, lie in lies(told, how_many):
        blocking.write(key, with_digest(put(told, way, lie)))
        with CheckpointManager(storage) as manager:
            try:
                assert set(manager.list_checkpoints()) <= {1, 2}
            except (CheckpointDamaged, InvalidInput):
                with pytest.raises((CheckpointDamaged, InvalidInput), match=r"lineage\.json"):
                    manager.save({}, step=3)
            else:
                manager.save({}, step=3)
                manager.delete(3)


def test_whatever_a_mark_says_saving_goes_on() -> None:
    storage = MemoryStorage()
    blocking, mark = BlockingStorage(storage), "default/checkpoints/readers/mark.json"
    with CheckpointManager(storage, keep_count=1) as manager:
        manager.save({}, step=1)
        told = {"folders": ["step_1"], "until_unix_seconds": 1e300}
        step = 2
        for way, lie in lies(told, "all", 0):
            blocking.write(mark, msgspec.json.encode(put(told, way, lie)))
            manager.save({"step": step}, step=step)
            step += 1
        blocking.write(mark, b"[" * 100_000)
        manager.save({}, step=step)
        manager.wait()
        assert manager.list_checkpoints() == [step]


def test_a_lie_in_an_old_checkpoint_does_not_stop_a_job_from_saving() -> None:
    storage = saved()
    with CheckpointManager(storage) as manager:
        manager.pin(2)
    forged, step = Forgery(storage, 2), 3

    def saves() -> None:
        nonlocal step
        with CheckpointManager(storage, keep_count=2) as manager:
            manager.save({"step": step}, step=step)
            assert manager.load(step) == {"step": step}
        step += 1

    part, told = forged.part, forged.metadata
    for place in ["files", "tensors", "leaves", "skeleton", "kind"]:
        for lie in ("../../outside", -1, None, [10**18]):
            forged.say_in_part(put(part, (place,), lie))
            saves()
    for lie in ("../../outside", "/etc/passwd", ""):
        forged.say_in_part(put(part, ("files", 0, "path"), lie))
        saves()
    for way in [("parts", 0, "path"), ("references",), ("metrics",), ("term",)]:
        for said in ("../../outside", ["../../outside"], {"loss": "low"}, -1, 10**12):
            forged.say_in_metadata(put(told, way, said))
            saves()


# -- what each lie would gain, on a disk -------------------------------------------------------------------------------

_watched: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.scandir"):
        _watched.extend(each for each in arguments if isinstance(each, str) and each.startswith("/"))


sys.addaudithook(_watch)


@contextmanager
def nothing_outside(root: Path) -> Iterator[None]:
    """Every file that is opened, made, moved or removed meanwhile is below this folder; and little memory is taken."""
    global _watched  # noqa: PLW0603  an audit hook stays for good
    _watched = []
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < PEACEFUL_BYTES
        allowed = (str(root), sys.prefix, sys.base_prefix)
        assert {path for path in _watched if not path.startswith(allowed)} <= {str(root.parent)}  # it is synced, too
    finally:
        tracemalloc.stop()
        _watched = None


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStorage]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "outside").write_bytes(b"not yours")
    storage = LocalStorage(folder / "root")
    with CheckpointManager(storage) as manager:
        manager.save(STATE, step=2)
        manager.load()  # whatever is imported late is there now
    yield storage
    BlockingStorage(storage).close()
    assert (folder / "outside").read_bytes() == b"not yours"


@pytest.fixture
def forgery(disk: LocalStorage) -> Iterator[Forgery]:
    forged = Forgery(disk, 2)
    yield forged
    forged.restore()


def refusal(disk: LocalStorage) -> str:
    with nothing_outside(disk.root):
        error = read_everything(disk)
    assert isinstance(error, CheckpointDamaged)
    return str(error)


def tensor_named(part: Any, name: str) -> int:
    found: int = next(n for n, tensor in enumerate(part["tensors"]) if tensor["name"] == name)
    return found


@pytest.mark.slow
def test_a_file_never_becomes_python_objects(disk: LocalStorage, forgery: Forgery) -> None:
    """Else eight bytes of it would be an address that the attacker chooses, taken for an object."""
    for dtype in ("object", "O", "numpy:|O", "numpy:O", "numpy:i4,O", "finfo", "numpy:(2,)O", "intc"):
        part = forgery.part
        view = next(leaf for leaf in part["leaves"] if isinstance(leaf, dict) and "offset" in leaf)
        view |= {"dtype": dtype, "shape": [1], "offset": 0, "strides": [8]}
        forgery.say_in_part(part)
        assert f"{dtype!r} is no" in refusal(disk)
        part = forgery.part
        part["tensors"][0]["dtype"] = dtype
        forgery.say_in_part(part)
        assert f"{dtype!r} is no" in refusal(disk)


def test_memory_is_not_taken_for_what_is_not_there(disk: LocalStorage, forgery: Forgery) -> None:
    whole, large, digest = forgery.part["files"][0]["size"], 1001 * CHUNK_BYTES, digest_of(b"")
    for told_size, refused in ((whole, "of no such file"), (large, f"has {whole:,} bytes, and {large:,} were written")):
        part = forgery.part
        part["tensors"][tensor_named(part, "w")] |= {
            "shape": [1000 * CHUNK_BYTES // 4],
            "chunks": [[0, 4096 + n * CHUNK_BYTES, CHUNK_BYTES, digest] for n in range(1000)],
        }
        part["files"][0]["size"] = told_size
        forgery.say_in_part(part)
        assert refused in refusal(disk)
    part = forgery.part
    tensor = part["tensors"][tensor_named(part, "w")]
    tensor["shape"] = [10**9, 10**9]
    forgery.say_in_part(part)
    assert "tensor 'w' of 4,000,000,000,000,000,000 bytes has 24 in a chunk at 0" in refusal(disk)
    tensor["chunks"][0][2] = 4 * 10**18
    forgery.say_in_part(part)
    assert "has 4,000,000,000,000,000,000 in a chunk at 0" in refusal(disk)
    tensor["chunks"] = []
    forgery.say_in_part(part)
    assert "tensor 'w' has 0 bytes, and a shape of [1000000000, 1000000000]" in refusal(disk)


def test_no_byte_is_read_over_and_over() -> None:
    """Eight megabytes could become as many terabytes."""
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save({"w": np.zeros(CHUNK_BYTES, np.uint8)}, step=2)
    forged = Forgery(storage, 2)
    part = forged.part
    tensor = part["tensors"][0]
    tensor |= {"chunks": tensor["chunks"] * 1000, "shape": [1000 * CHUNK_BYTES]}
    forged.say_in_part(part)
    assert "its tensors have 8,388,608,000 bytes, and its files 8,388,608" in str(read_everything(storage))
    part["files"] *= 1000
    forged.say_in_part(part)
    assert "it names a file twice" in str(read_everything(storage))


def test_no_chunk_is_read_from_before_a_file_or_behind_it(disk: LocalStorage, forgery: Forgery) -> None:
    whole = forgery.part["files"][0]["size"]
    for at in (-24, -1, whole - 23, whole, 2**62):
        part = forgery.part
        part["tensors"][tensor_named(part, "w")]["chunks"][0][1] = at
        forgery.say_in_part(part)
        assert f"tensor 'w' has 24 bytes at {at:,} of no such file" in refusal(disk)


def test_no_view_lies_outside_of_its_tensor(disk: LocalStorage, forgery: Forgery) -> None:
    for lie in (
        {"offset": -8},
        {"offset": 96},
        {"strides": [10**12]},
        {"strides": [-16]},
        {"shape": [10**12]},
        {"shape": [2, 2]},
        {"shape": [0]},
    ):
        part = forgery.part
        view = next(leaf for leaf in part["leaves"] if isinstance(leaf, dict) and "offset" in leaf)
        view |= lie
        forgery.say_in_part(part)
        assert "'view'" in refusal(disk)


@pytest.mark.parametrize(
    "path", ["../../../../outside", "/etc/passwd", "step_2/../../../../outside", "step_1/./model.bin", "a\\b", "", "\0"]
)
def test_no_path_leads_outside(disk: LocalStorage, forgery: Forgery, path: str) -> None:
    part = forgery.part
    part["files"][0]["path"] = path
    forgery.say_in_part(part)
    assert "key" in refusal(disk)
    told = forgery.metadata
    told["parts"][0]["path"] = path
    forgery.say_in_metadata(told)
    assert "key" in refusal(disk)


def test_no_link_leads_outside(disk: LocalStorage, forgery: Forgery) -> None:
    link = disk.root / forgery.folder / "link.safetensors"
    link.symlink_to(disk.root.parent / "outside")
    part = forgery.part
    part["files"][0] |= {"path": "step_2/link.safetensors", "size": 9, "header_size": 0}
    part["tensors"] = [{"name": "w", "dtype": "uint8", "shape": [9], "chunks": [[0, 0, 9, digest_of(b"not yours")]]}]
    part |= {"leaves": [0], "skeleton": {"numpy": 0}}
    forgery.say_in_part(part)
    with (
        nothing_outside(disk.root),
        CheckpointReader(disk) as reader,
        pytest.raises(InvalidInput, match="leads out of"),
    ):
        reader.load(2)
    link.unlink()


@pytest.mark.parametrize("levels", [200, 900, 5_000, 1_000_000])
def test_a_state_without_a_bottom_is_refused(levels: int) -> None:
    storage = saved()
    forged = Forgery(storage, 2)
    part = msgspec.json.encode(forged.part | {"skeleton": "HERE"})
    for opened, closed in ((b"[", b"]"), (b'{"dict":{"a":', b"}}"), (b'{"tuple":[', b"]}")):
        forged.say_in_part_as_written(part.replace(b'"HERE"', opened * levels + b"1" + closed * levels))
        assert levels < 300 or isinstance(read_everything(storage), CheckpointDamaged)


WORDS = st.sampled_from([*MAKERS, "as", "default", "fields", "values", "parameter", "Counter", "float32", "cuda"])
PLAIN = st.none() | st.booleans() | st.integers(-2, 12) | st.floats(allow_nan=False) | WORDS | st.text(max_size=3)
SKELETONS = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=12
)


@pytest.fixture(scope="module")
def storage() -> MemoryStorage:
    return saved()


@given(SKELETONS)
def test_a_skeleton_is_a_state_or_a_clear_error(storage: MemoryStorage, skeleton: Any) -> None:
    forged = Forgery(storage, 2)
    forged.say_in_part(forged.part | {"skeleton": skeleton})
    read_everything(storage)
    forged.restore()


@pytest.mark.parametrize(
    "node",
    [
        {},
        {"items": [[1]]},
        {"items": [[{"dict": {}}, 1]]},
        {"items": [], "as": "defaultdict", "default": "eval"},
        {"dict": 5},
        {"numpy": -1},
        {"numpy": 99},
        {"numpy": True},
        {"numpy": [0]},
        {"arrays": ["a"], "from": -1, "of": "numpy"},
        {"arrays": ["a", "a"], "from": 0, "of": "numpy"},
        {"arrays": ["a", "b", "c"] * 100, "from": 0, "of": "numpy"},
        {"arrays": "ab", "from": 0, "of": "numpy"},
        {"arrays": ["a"], "from": 0, "of": "bytes"},
        {"arrays": ["a"], "from": 0},
        {"named": "P", "fields": ["x"], "values": []},
        {"tuple": {}},
        {"int": "9" * 10_000},
        {"int": "007"},
        {"int": 7},
        {"float": "1.5"},
        {"complex": [1]},
        {"torch.Size": ["a"]},
        {"torch.dtype": 3},
    ],
    ids=lambda node: str(node)[:40],
)
def test_what_is_no_skeleton_is_damage_to_all_who_look(storage: MemoryStorage, node: Any) -> None:
    forged = Forgery(storage, 2)
    forged.say_in_part(forged.part | {"skeleton": [forged.part["skeleton"], node]})
    with pytest.raises(CheckpointDamaged, match=r"part-0-\S+json cannot be true: its skeleton (holds|has)"):
        look_at(storage)
    with CheckpointReader(storage) as reader, pytest.raises(CheckpointDamaged, match="cannot be true"):
        reader.load(2)
    forged.restore()


@pytest.mark.parametrize("again", [{"numpy": 2}, {"arrays": ["x", "y"], "from": 1, "of": "torch"}])
def test_every_array_has_one_place(storage: MemoryStorage, again: Any) -> None:
    forged = Forgery(storage, 2)
    forged.say_in_part(forged.part | {"skeleton": [again, forged.part["skeleton"]]})
    assert re.search("array [12] is in two places", str(read_everything(storage)))
    forged.say_in_part(forged.part | {"skeleton": [again]})
    assert "array 0 is nowhere" in str(read_everything(storage))
    forged.restore()


def test_a_skeleton_from_the_future_is_no_damage(storage: MemoryStorage) -> None:
    forged = Forgery(storage, 2)
    forged.say_in_part(forged.part | {"skeleton": {"hologram": {"numpy": 0}}})
    with pytest.raises(InvalidInput, match="holds a 'hologram', which this version of Strata does not know: upgrade"):
        look_at(storage)
    forged.restore()


def test_a_state_is_a_tree_or_bytes(storage: MemoryStorage) -> None:
    forged = Forgery(storage, 2)
    for kind in ("bytes", "wood"):
        forged.say_in_part(forged.part | {"kind": kind})
        assert "cannot be true" in str(read_everything(storage))
    forged.restore()


ENDLESS = {"shape": [1 << 36], "strides": [0]}


def test_no_view_is_written_out_that_has_far_more_than_is_stored(
    disk: LocalStorage, forgery: Forgery, tmp_path: Path
) -> None:
    part = forgery.part
    next(leaf for leaf in part["leaves"] if isinstance(leaf, dict) and "offset" in leaf).update(ENDLESS)
    forgery.say_in_part(part)
    told = r"'view' has 549,755,813,888 bytes, and 96 are stored"
    template = {"view": torch.empty(1 << 36, dtype=torch.float64, device="meta")}
    mine = {"view": np.lib.stride_tricks.as_strided(np.zeros(1), (1 << 36,), (0,))}
    store = Store(disk, "default")
    _, found = background.run(tree_in(store, Folder(2)))
    with nothing_outside(disk.root), CheckpointReader(disk) as reader:
        assert reader.load(2)["view"].shape == (1 << 36,)
        assert reader.load_slice("view", slice(0, 3), 2).tolist() == [2, 2, 2]
        for read in (
            lambda: reader.load_slice("view", ..., 2),
            lambda: reader.load_slice("view", slice(1, 1 << 24), 2),
            lambda: reader.load(2, like=template, strict=False),
            lambda: reader.load(2, into=mine, strict=False),
            lambda: choose(found, "view"),
            lambda: background.run(LeafSupply(store, found, leaves_of(found)).whole(view_number(found))),
        ):
            with pytest.raises(InvalidInput, match=r"'view' has [\d,]+ bytes, and 96 are stored"):
                read()
    with pytest.raises(InvalidInput, match=told):
        background.run(export_dcp(store, Folder(2), found, str(tmp_path / "dcp")))
    assert not (tmp_path / "dcp").exists()
    background.run(export_dcp(store, Folder(2), found, str(tmp_path / "dcp"), wants=lambda name: name == "w"))


def view_number(part: Whole) -> int:
    return next(leaf.number for leaf in leaves_of(part) if leaf.name == "view")


def test_a_package_without_views_has_none(disk: LocalStorage, forgery: Forgery) -> None:
    part = forgery.part
    part["skeleton"]["dict"]["view"] = {"jax": part["skeleton"]["dict"]["view"]["numpy"]}
    forgery.say_in_part(part)
    with CheckpointReader(disk) as reader, pytest.raises(CheckpointDamaged, match="'view' of jax is a view"):
        reader.load(2)


def test_no_bytes_are_more_than_the_file_holds(disk: LocalStorage, forgery: Forgery) -> None:
    part = forgery.part
    number = part["skeleton"]["dict"]["plain"]["dict"]["raw"]["bytes"]
    part["leaves"][number] = {
        "is": "tied", "name": "plain/raw", "tensor": 0, "dtype": "uint8", "shape": [10**9], "offset": 0, "strides": [0],
    }  # fmt: skip
    forgery.say_in_part(part)
    assert "'plain/raw' has 1,000,000,000 bytes, and lies in 24" in refusal(disk)


def test_the_true_one_still_loads() -> None:
    storage = saved()
    forged = Forgery(storage, 2)
    forged.say_in_part(forged.part)
    assert read_everything(storage) is None
    forged.restore()
    forged.say_in_metadata(forged.metadata)
    assert read_everything(storage) is None
    with CheckpointReader(storage) as reader:
        assert_same(reader.load(2), STATE)
