"""What a job does to its checkpoints while it may die, and what whoever comes after it must find.

A kind is a way of saving; to add one, add it to KINDS. A scene is what is there, what is done, and which checkpoints
may be there afterwards.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.store import Folder
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.states import assert_same

JOB = "default/checkpoints"
LARGE = 300_000  # floats: more than a megabyte is written directly


class Kind(NamedTuple):
    """A way of saving. Every number of a state tells its step, so that no mixture of two goes unseen."""

    state: Callable[[float], Any]
    incremental: bool = False


def _tree(step: float) -> Any:
    return {
        "model": {"weight": np.full(LARGE, step, np.float32), "bias": torch.full((3,), step).bfloat16()},
        "optimizer": {"state": {0: {"exp_avg": np.full(100, step), "step": torch.tensor(step)}}},
        "tied": [_tied := np.full(50, step), _tied[10:20]],
        "step": step,
    }


FROZEN = np.arange(LARGE, dtype=np.float32)


def _partly_frozen(step: float) -> Any:
    return {"frozen": FROZEN, "moving": np.full(50, step), "step": step}


KINDS = {
    "tree": Kind(_tree),
    "bytes": Kind(lambda step: f"{step:.3f}".encode() * (LARGE // 2)),
    "incremental": Kind(_partly_frozen, incremental=True),
}
TREE = KINDS["tree"]


def manager_of(root: Path, kind: Kind, **settings: Any) -> CheckpointManager:
    return CheckpointManager(root, incremental=kind.incremental, **({"keep_count": 2} | settings))


# -- scenes ------------------------------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """`found`: the steps that may be listed afterwards, in the order in which they may come to be."""

    before: Callable[[Path, Kind], None]
    act: Callable[[Path, Kind], None]
    found: list[list[int]]


def nothing(root: Path, kind: Kind) -> None:
    """A folder that nobody has written to."""


def two_saved(root: Path, kind: Kind) -> None:
    with manager_of(root, kind) as manager:
        for step in (1, 2):
            manager.save(kind.state(step), step=step)


def two_saved_and_one_pinned(root: Path, kind: Kind) -> None:
    two_saved(root, kind)
    with manager_of(root, kind) as manager:
        manager.pin(1)


def two_saved_beside_what_the_dead_left(root: Path, kind: Kind) -> None:
    two_saved(root, kind)
    folder = root / JOB
    shutil.copytree(folder / "step_1", folder / "step_0")
    (folder / "step_0/metadata.json").unlink()
    (folder / "step_3").mkdir()
    for name in ("part-0-1-0000dead-0.safetensors", "part-0-1-0000dead.json", "model.bin"):
        (folder / "step_3" / name).write_bytes(b"what a dead process left")
    (root / ".strata-tmp/0000dead.part").write_bytes(b"what a dead process left")


def save_the_first(root: Path, kind: Kind) -> None:
    with manager_of(root, kind) as manager:
        manager.save(kind.state(1), step=1)


def save_the_third(root: Path, kind: Kind) -> None:
    """And delete the first, by retention."""
    with manager_of(root, kind) as manager:
        manager.load()
        manager.save(kind.state(3), step=3)


def go_back(root: Path, kind: Kind) -> None:
    """To the first, and on from there."""
    with manager_of(root, kind, keep_count=None) as manager:
        manager.load(1)
        manager.save(kind.state(2.5), step=2)


def delete(root: Path, kind: Kind) -> None:
    """Though it is pinned, as `strata ckpt rm --force` does."""
    with manager_of(root, kind, keep_count=None) as manager:
        background.run(ManagerSeam(manager).checkpoints.delete([Folder(1)]))


def pin_and_unpin(root: Path, kind: Kind) -> None:
    with manager_of(root, kind) as manager:
        manager.pin(1)
        manager.unpin(1)
        manager.pin(2)


GROWS = [[1, 2], [1, 2, 3], [2, 3]]
SCENES = {
    "save the first": Scene(nothing, save_the_first, [[], [1]]),
    "save, commit, delete by retention": Scene(two_saved, save_the_third, GROWS),
    "go back and save anew": Scene(two_saved, go_back, [[1, 2], [1], [1, 2]]),
    "delete": Scene(two_saved_and_one_pinned, delete, [[1, 2], [2]]),
    "pin": Scene(two_saved, pin_and_unpin, [[1, 2]]),
    "sweep": Scene(two_saved_beside_what_the_dead_left, save_the_third, GROWS),
}
STATES_OF_STEP = {2: (2, 2.5)}


# -- afterwards --------------------------------------------------------------------------------------------------------


def found_afterwards(root: Path, kind: Kind) -> list[int]:
    """What a new process finds: whole checkpoints, each as it was saved, the last of them the latest; and that it can
    go on, and leaves nothing that no checkpoint needs."""
    with CheckpointReader(root) as reader:
        steps = reader.list_checkpoints()
        for step in steps:
            assert is_state_of(step, reader.load(step), kind)
            reader.verify(step)
        assert reader.latest_step() == (steps[-1] if steps else None)
        if steps:
            assert is_state_of(steps[-1], reader.load(), kind)
    let_marks_run_out(root)
    with manager_of(root, kind) as manager:
        if steps:
            manager.load()
        manager.save(kind.state(9), step=9)
        manager.wait()
        assert manager.list_checkpoints()[-1] == 9
        assert_same(manager.load(), kind.state(9))
        manager.verify()
    assert files_in(root) == needed_in(root)
    return steps


def is_state_of(step: int, state: Any, kind: Kind) -> bool:
    """To the last bit."""
    for each in STATES_OF_STEP.get(step, (step,)):
        try:
            assert_same(state, kind.state(each))
        except AssertionError:
            continue
        return True
    return False


def let_marks_run_out(root: Path) -> None:
    """Those of the dead: in ten minutes, of which nobody waits here."""
    shutil.rmtree(root / JOB / "readers", ignore_errors=True)


def files_in(root: Path) -> set[str]:
    """All of them, but for the one that holds the lock."""
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    return found - {".strata-tmp/lock"}


def needed_in(root: Path) -> set[str]:
    """What the checkpoints themselves say that they are made of."""
    needed = {"lineage.json"}
    for file in (root / JOB).glob("step_*/metadata.json"):
        told = json.loads(file.read_text("utf-8"))
        needed.add(f"{file.parent.name}/metadata.json")
        for part in told["parts"]:
            needed.add(part["path"])
            needed |= {each["path"] for each in json.loads((root / JOB / part["path"]).read_text("utf-8"))["files"]}
        if (root / JOB / "pins" / file.parent.name).exists():
            needed.add(f"pins/{file.parent.name}")
    return {f"{JOB}/{path}" for path in needed}
