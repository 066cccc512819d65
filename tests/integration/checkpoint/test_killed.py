"""kill -9 of a real process at each call that changes the disk: saving, committing, deleting, sweeping.

A fresh process then finds the checkpoint before or the new one, whole, goes on from there, and leaves no rubbish.
"""

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.checkpoint.scenes import KINDS, SCENES, TREE, found_afterwards
from tests.integration.checkpoint.stages import Stage, chosen, some_and_all
from tests.integration.tracing import under_strace

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

PLAYED = [
    *(("save the first", kind) for kind in KINDS),
    *(("save, commit, delete by retention", kind) for kind in KINDS),
    ("go back and save anew", "tree"),
    ("go back and save anew", "incremental"),
    ("delete", "tree"),
    ("delete", "incremental"),
    ("pin", "tree"),
    ("sweep", "tree"),
    ("sweep", "bytes"),
    ("sweep", "incremental"),
]


@some_and_all
@pytest.mark.parametrize(("scene", "kind"), PLAYED, ids=[f"{scene}, {kind}" for scene, kind in PLAYED])
def test_killed_at_each_change_of_the_disk(tmp_path: Path, scene: str, kind: str, how_many: str) -> None:
    played, way = SCENES[scene], KINDS[kind]
    stage = Stage(tmp_path, played, way)
    count = len(stage.calls())
    assert count > 10
    reached = 0
    for at in chosen(count + 1, how_many):
        died = stage.play(at)
        assert died == (at <= count), f"call {at} of {count}"
        steps = found_afterwards(stage.root, way)
        # What may be found comes in an order, and never goes back.
        while steps != played.found[reached]:
            reached += 1
            assert reached < len(played.found), f"{steps} was found after call {at} of {count}"
    assert reached == len(played.found) - 1


# -- as the kernel sees it ---------------------------------------------------------------------------------------------

KERNEL_NAMES = {
    "openat": "create",
    "pwrite64": "pwrite",
    "fsync": "fsync",
    "ftruncate": "ftruncate",
    "utimensat": "utime",
    "rename": "replace",
    "link": "link",
    "linkat": "link",
    "unlink": "unlink",
    "mkdir": "mkdir",
    "rmdir": "rmdir",
}
ALSO_CHANGE = {
    "pwritev",
    "pwritev2",
    "fallocate",
    "truncate",
    "renameat",
    "renameat2",
    "unlinkat",
    "mkdirat",
    "symlink",
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_change_of_the_disk_is_missed(tmp_path: Path, strace: str, kind: str) -> None:
    """What dies above dies at every call that the kernel counts as a change."""
    way, scene = KINDS[kind], SCENES["save, commit, delete by retention"]
    stage = Stage(tmp_path, scene, way)
    counted = Counter(stage.calls())
    stage.set_up()
    assert under_strace(strace, "fsync:delay_enter=1", lambda: scene.act(stage.root, way), tmp_path) == 0
    made = re.findall(r"^\d+ +(\w+)\((.*)", (tmp_path / "strace.log").read_text("utf-8"), re.MULTILINE)
    assert not ALSO_CHANGE & {name for name, _ in made}
    assert not [rest for name, rest in made if name in ("write", "writev") and str(stage.root) in rest]
    seen = Counter(KERNEL_NAMES[name] for name, rest in made if name in KERNEL_NAMES and _changes(name, rest))
    assert seen == counted


def _changes(name: str, rest: str) -> bool:
    return name != "openat" or "O_CREAT" in rest


@pytest.mark.parametrize("call", ["pwrite64", "fsync", "rename", "link", "unlink", "rmdir"])
def test_killed_inside_the_kernel(tmp_path: Path, strace: str, call: str) -> None:
    scene = SCENES["save, commit, delete by retention"]
    stage = Stage(tmp_path, scene, TREE)
    for when in (1, 2, 3):  # of each thread
        stage.set_up()
        code = under_strace(strace, f"{call}:signal=KILL:when={when}", lambda: scene.act(stage.root, TREE), tmp_path)
        assert code == -signal.SIGKILL or (code == 0 and when > 1)
        assert found_afterwards(stage.root, TREE) in scene.found
