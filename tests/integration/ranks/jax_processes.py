"""Arrays of JAX in every layout that processes can hold them in, saved by some processes and loaded by others.

    python -m tests.integration.ranks.jax_processes FOLDER PROCESS PROCESSES PORT [--save]

Each has as many devices as XLA_FLAGS say. Where there is only one process it is not told of any others.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.errors import InvalidInput, Unstorable
from strata.storage import LocalStorage
from strata.storage.backend import Data
from tests.unit.checkpoint.jax_layouts import BIG, SHAPES, arrays, assert_holds, made, meshes, shardings, value

MANIFESTS = 1 << 21
"""More than all that is read beside tensors."""


class Counting(LocalStorage):
    """Knows how many bytes of tensors were read."""

    read_bytes = 0

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        self.read_bytes += sum(memoryview(target).nbytes for target in targets)  # type: ignore[arg-type, misc]
        await super().read_into(path, start, targets)


def common(shape: tuple[int, ...]) -> list[Sharding]:
    """Those that are the same on all processes."""
    return [each for each in shardings(shape) if len(each.device_set) == jax.device_count()]


def partly(shape: tuple[int, ...]) -> list[Sharding]:
    """On some processes alone: on the last, and on all but the first."""
    devices = jax.devices()
    others = [device for device in devices if device.process_index] or devices
    lines = [Mesh(np.array(each), ("x",)) for each in (devices[-1:], others)]
    return [NamedSharding(line, PartitionSpec("x")) for line in lines if shape[0] % line.size == 0]


def big() -> dict[str, jax.Array]:
    line = meshes()["line"]
    layouts = {"whole": PartitionSpec(), "rows": PartitionSpec("x"), "columns": PartitionSpec(None, "x")}
    return {
        name: made(value(BIG, jnp.float32), NamedSharding(line, spec))
        for name, spec in layouts.items()
        if BIG[0] % line.size == 0 or name == "whole"
    }


def state() -> dict[str, Any]:
    """Of each shape all layouts; and what is not JAX's to spread."""
    return {
        "layouts": {str(shape): arrays(shape, common) for shape in SHAPES},
        "partly": arrays((48, 24), partly),
        "big": big(),
        "local": jnp.arange(5) + 7,
        "host": np.arange(3.0),
        "step": 11,
    }


def like(saved: Any, sharding: Sharding, whole: np.ndarray[Any, Any]) -> dict[str, Any]:
    return dict.fromkeys(saved, jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=sharding))


def check_layouts(manager: CheckpointManager, saved: dict[str, Any]) -> None:
    """Every layout here from every layout there."""
    for shape, dtype in SHAPES.items():
        names, whole = saved["layouts"][str(shape)], value(shape, dtype)
        for found in names.values():
            assert_holds(found, whole)
        for sharding in shardings(shape):
            template = {"layouts": {str(shape): like(names, sharding, whole)}}
            made_here = manager.load(like=template, strict=False)["layouts"][str(shape)]
            assert made_here.keys() == names.keys()
            for found in made_here.values():
                assert_holds(found, whole, sharding)
    whole = value((48, 24), jnp.float32)
    for sharding in (*common((48, 24)), *partly((48, 24))):
        template = {"partly": like(saved["partly"], sharding, whole)}
        for found in manager.load(like=template, strict=False)["partly"].values():
            assert_holds(found, whole, sharding)


def check_bytes_read(manager: CheckpointManager, storage: Counting, saved: Iterable[str]) -> None:
    """Of what was cut in the same direction each process reads its own share."""
    whole = value(BIG, jnp.float32)
    for name, here in big().items():
        for other in saved:
            storage.read_bytes = 0
            found = manager.load(like={"big": {other: here}}, strict=False)["big"][other]
            assert_holds(found, whole, here.sharding)
            own = sum({str(shard.index): shard.data.nbytes for shard in here.addressable_shards}.values())
            assert own == whole.nbytes // (1 if name == "whole" else jax.process_count())
            if name == other or (name, other) == ("rows", "whole"):
                assert storage.read_bytes <= own + MANIFESTS, (name, other, storage.read_bytes, own)


def check_written(folder: Path, saved: dict[str, Any]) -> None:
    """Each element once, and as much by each."""
    told = CheckpointReader(folder).describe()
    written = [part.written_bytes for part in told.parts]
    assert sum(written) == sum(leaf.nbytes for leaf in jax.tree.leaves(saved) if hasattr(leaf, "nbytes"))
    assert len(written) == jax.process_count()
    assert max(written) - min(written) < max(written) // 20, written


def check_alone(folder: Path) -> None:
    """Whoever saves without the others saves what it has all of, and nothing else."""
    whole, line = value((48, 24), jnp.float32), meshes()["line"]
    with CheckpointManager(folder) as manager:
        with pytest.raises(Unstorable, match="a: other ranks hold parts of it: save on all of them"):
            manager.save({"a": made(whole, NamedSharding(line, PartitionSpec("x")))}, 1)
        everywhere = made(whole, NamedSharding(line, PartitionSpec()))
        manager.save({f"w{number}": everywhere for number in range(10)}, 1)
        for found in manager.load().values():
            assert_holds(found, whole)
    with pytest.raises(InvalidInput, match="need a name for their run"):
        CheckpointManager(folder, rank=0, world_size=jax.process_count() + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("process", type=int)
    parser.add_argument("processes", type=int)
    parser.add_argument("port")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    if given.processes > 1:
        jax.distributed.initialize(f"127.0.0.1:{given.port}", given.processes, given.process)
    rank, world = jax.process_index(), jax.process_count()
    assert world == given.processes
    storage = Counting(given.folder)
    with CheckpointManager(storage, rank=rank, world_size=world) as manager:
        if given.save:
            manager.save(state(), 1)
            manager.save_async(state(), 2).result()
        saved = manager.load()
        assert saved["step"] == 11
        assert saved["local"].tolist() == [7, 8, 9, 10, 11]
        check_layouts(manager, saved)
        check_bytes_read(manager, storage, saved["big"])
        if given.save and rank == 0:
            check_written(given.folder, saved)
    if world > 1:
        check_alone(given.folder / f"alone-{rank}")


if __name__ == "__main__":
    main()
