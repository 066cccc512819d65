"""Checkpoints of JAX's arrays on 8 devices, as a program: `python -m tests.unit.checkpoint.with_jax_devices`."""

import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from strata.checkpoint import CheckpointManager, shares
from strata.checkpoint.frameworks.base import Piece, Shards
from strata.checkpoint.frameworks.jax import JaxArrays
from strata.checkpoint.frameworks.jaxsharding import Portion, cut, dealt, shards_of
from strata.checkpoint.shares import shares_of
from strata.checkpoint.slices import box_of
from strata.errors import Unstorable
from strata.storage import MemoryStorage
from strata.storage.backend import Data
from tests.unit.checkpoint.jax_layouts import SHAPES, arrays, assert_holds, made, meshes, shardings, value

PROCESSES: dict[str, Callable[[int], int]] = {
    "one": lambda device: 0,
    "two": lambda device: device // 4,
    "four": lambda device: device // 2,
    "eight": lambda device: device,
    "taking turns": lambda device: device % 2,
    "of different sizes": lambda device: [0, 1, 1, 2, 2, 2, 2, 2][device],
}
"""Who might have which device."""


class Counting(MemoryStorage):
    """Knows how many bytes were read into memory."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        self.read_bytes += sum(memoryview(target).nbytes for target in targets)  # type: ignore[arg-type, misc]
        await super().read_into(path, start, targets)


def dealt_out(array: jax.Array, process_of: Callable[[int], int]) -> dict[int, Shards]:
    """What each process would have of it, if devices were theirs."""
    held = [(box_of(array.shape, shard.index), shard) for shard in array.addressable_shards]
    whose = [(box, process_of(shard.device.id)) for box, shard in held]
    data = {box: shard.data for box, shard in held}
    return {
        process: Shards(
            [Piece(box.at, Portion(data[box], box.shape), copy, of) for box, copy, of in dealt(whose, process)]
        )
        for process in {process for _, process in whose}
    }


def each_element_is_written_once_by_whoever_shares_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    package = JaxArrays()
    for split, process_of in ((split, each) for split in (1 << 20, 8) for each in PROCESSES.values()):
        monkeypatch.setattr(shares, "SPLIT_BYTES", split)
        for shape in SHAPES:
            for name, array in arrays(shape, shardings).items():
                count = np.zeros(shape, np.int64)
                found = np.zeros(shape, array.dtype)
                for shards in dealt_out(array, process_of).values():
                    for share in shares_of(name, package, shards):
                        index = share.box.within(share.box.whole(shape))
                        room = np.empty(share.described.size, np.uint8)
                        package.copy_out([(share.value, room)])
                        count[index] += 1
                        found[index] = room.view(array.dtype).reshape(share.described.shape)
                assert (count == 1).all(), (shape, array.sharding)
                assert_holds(array, found)


def work_is_shared_evenly() -> None:
    sizes = {"whole": 1 << 23, "half": 1 << 22, "rows": 1 << 20}
    layouts = {"whole": PartitionSpec(), "half": PartitionSpec("x"), "rows": PartitionSpec(("x", "y"))}
    for name, spec in layouts.items():
        array = jax.device_put(np.zeros((1 << 11, 1 << 10), np.float32), NamedSharding(meshes()["grid"], spec))
        written = [
            sum(share.described.size for share in shares_of(name, JaxArrays(), shards))
            for shards in dealt_out(array, lambda device: device // 2).values()
        ]
        assert written == [array.nbytes // 4] * 4, (name, written)
        assert array.addressable_shards[0].data.nbytes == sizes[name]
    pieces = dealt_out(made(np.ones(3, np.float32), replicated()), lambda device: device // 2)
    small = Counter(
        process
        for number in range(400)
        for process, shards in pieces.items()
        if shares_of(f"layer.{number}", JaxArrays(), shards)
    )
    assert set(small) == {0, 1, 2, 3}
    assert min(small.values()) > 50


def replicated() -> NamedSharding:
    return NamedSharding(meshes()["grid"], PartitionSpec())


def every_layout_comes_from_every_other() -> None:
    for shape, dtype in SHAPES.items():
        state, whole = arrays(shape, shardings), value(shape, dtype)
        with CheckpointManager(MemoryStorage()) as manager:
            manager.save(state, 1)
            for found in manager.load().values():
                assert_holds(found, whole)
            for sharding in shardings(shape):
                template = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
                for found in manager.load(like=dict.fromkeys(state, template)).values():
                    assert_holds(found, whole, sharding)
            for name, found in manager.load(like=state).items():
                assert_holds(found, whole, state[name].sharding)


def a_mesh_stays_what_it_is() -> None:
    array = jax.device_put(jnp.arange(8.0), NamedSharding(meshes()["line"], PartitionSpec("x")))
    with CheckpointManager(MemoryStorage()) as manager:
        for step in range(10):
            manager.save({"a": array}, step)
    assert array.devices() == set(jax.devices())


def nothing_is_gathered_to_be_copied() -> None:
    array = jax.device_put(np.ones((64, 1 << 14), np.float32), NamedSharding(meshes()["grid"], PartitionSpec("y", "x")))
    room = np.empty(array.nbytes, np.uint8)
    tracemalloc.start()
    JaxArrays().copy_out([(array, room)])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert room.tobytes() == np.ones((64, 1 << 14), np.float32).tobytes()
    assert most < array.nbytes // 8


def rows_are_the_same_wherever_they_are_cut_out() -> None:
    array = jnp.asarray(value((48, 24), jnp.float32))
    for rows in (slice(0, 48), slice(5, 11), slice(47, 48), slice(7, 7)):
        assert cut(array, rows, there=True).tobytes() == cut(array, rows, there=False).tobytes()
    portion = Portion(array, (48, 24))[slice(8, 40)][slice(10, 12)]
    assert portion.elements().tobytes() == np.asarray(array)[18:20].tobytes()


def what_several_devices_have_is_read_once() -> None:
    storage, whole = Counting(), value((1 << 10, 1 << 10), jnp.float32)
    with CheckpointManager(storage) as manager:
        manager.save({"a": whole}, 1)
        for spec in (PartitionSpec(), PartitionSpec("x"), PartitionSpec("y", "x")):
            storage.read_bytes = 0
            sharding = NamedSharding(meshes()["grid"], spec)
            template = jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=sharding)
            assert_holds(manager.load(like={"a": template})["a"], whole, sharding)
            assert storage.read_bytes == whole.nbytes


def arrays_of_other_packages_become_ones_on_many_devices() -> None:
    base = np.arange(96, dtype=np.float32).reshape(8, 12)
    state = {"base": base, "view": base[2:6, 4:8], "turned": base.T, "same": base}
    line, grid = meshes()["line"], meshes()["grid"]
    there = {
        "base": NamedSharding(line, PartitionSpec("x")),
        "view": NamedSharding(grid, PartitionSpec("y", "x")),
        "turned": NamedSharding(grid, PartitionSpec("y", None)),
        "same": SingleDeviceSharding(jax.devices()[3]),
    }
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state, 1)
        like = {
            name: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=there[name]) for name, each in state.items()
        }
        for name, found in manager.load(like=like).items():
            assert_holds(found, state[name], there[name])


def an_array_keeps_its_kind_of_memory() -> None:
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()}
    whole = value((48, 24), jnp.float32)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": whole}, 1)
        for kind in kinds:
            sharding = NamedSharding(meshes()["grid"], PartitionSpec("x"), memory_kind=kind)
            template = jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=sharding)
            assert_holds(manager.load(like={"a": template})["a"], whole, sharding)


def what_was_made_can_be_donated() -> None:
    """Memory that several devices may share is not changed by one of them."""
    whole = value((48, 24), jnp.float32)
    template = jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=replicated())
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": np.ones_like(whole)}, 1)
        found = manager.load(like={"a": template})["a"]
    ones = [shard.data for shard in found.addressable_shards]
    doubled = jax.jit(lambda each: each * 2, donate_argnums=0)(ones[0])
    assert (np.asarray(doubled) == 2).all()
    assert all((np.asarray(each) == 1).all() for each in ones[1:])


def what_cannot_be_is_said() -> None:
    line = NamedSharding(meshes()["line"], PartitionSpec("x"))
    nowhere = NamedSharding(AbstractMesh((2,), ("x",)), PartitionSpec("x"))
    gone = jax.device_put(jnp.arange(8.0), line)
    gone.delete()

    def like(shape: tuple[int, ...], dtype: Any, where: Any = None) -> Any:
        return {"a": jax.ShapeDtypeStruct(shape, dtype, sharding=where)}

    with CheckpointManager(MemoryStorage()) as manager:
        with pytest.raises(Unstorable, match=r"a: the JAX array has no data any more"):
            manager.save({"a": gone}, 1)
        manager.save({"a": np.zeros(6, np.float32)}, 1)
        with pytest.raises(Unstorable, match=r"a: its sharding gives it no place .* evenly divide"):
            manager.load(like=like((6,), jnp.float32, line))
        with pytest.raises(Unstorable, match=r"a: its sharding gives it no place .*AbstractMesh"):
            manager.load(like=like((6,), jnp.float32, nowhere))
        with pytest.raises(Unstorable, match=r"a: a JAX array of key.*key_data"):
            manager.load(like={"a": jax.random.key(0)})
        with pytest.raises(Unstorable, match=r"a: a JAX array cannot be changed in place"):
            manager.load(into={"a": jax.device_put(jnp.zeros(6), replicated())})
        manager.save({"a": np.zeros(8)}, 2)
        with pytest.raises(Unstorable, match=r"JAX holds no float64 unless told to"):
            manager.load(like=like((8,), np.float64, line))


def a_process_that_has_all_of_it_saves_it_alone() -> None:
    """Whatever others have, too; and none of it, if it has none."""
    whole = value((48, 24), jnp.float32)
    shards = shards_of(made(whole, replicated()))
    also = Shards([piece._replace(copy=1, copies=3) for piece in shards.pieces])
    for number in range(20):
        (share,) = shares_of(f"w{number}", JaxArrays(), also.alone())
        assert share.described.shape == whole.shape


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        each_element_is_written_once_by_whoever_shares_the_work(patch)
    work_is_shared_evenly()
    every_layout_comes_from_every_other()
    a_mesh_stays_what_it_is()
    nothing_is_gathered_to_be_copied()
    rows_are_the_same_wherever_they_are_cut_out()
    what_several_devices_have_is_read_once()
    arrays_of_other_packages_become_ones_on_many_devices()
    an_array_keeps_its_kind_of_memory()
    what_was_made_can_be_donated()
    what_cannot_be_is_said()
    a_process_that_has_all_of_it_saves_it_alone()
