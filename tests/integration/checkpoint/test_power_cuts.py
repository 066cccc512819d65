"""Power fails at each change of the disk: what was committed is there, and a save under way was made or was not."""

from pathlib import Path

import pytest

from strata.checkpoint import CheckpointReader
from tests.integration.checkpoint.scenes import KINDS, SCENES, found_afterwards, is_state_of, manager_of, two_saved
from tests.integration.checkpoint.stages import Stage, chosen, some_and_all
from tests.integration.disks import Disk
from tests.integration.storage.crashing import dies, kill

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

PLAYED = [
    *(("save, commit, delete by retention", kind) for kind in KINDS),
    ("save the first", "tree"),
    ("go back and save anew", "tree"),
    ("delete", "incremental"),
    ("sweep", "tree"),
]


@some_and_all
@pytest.mark.parametrize(("scene", "kind"), PLAYED, ids=[f"{scene}, {kind}" for scene, kind in PLAYED])
def test_power_fails_at_each_change_of_the_disk(
    disk: Disk, tmp_path: Path, scene: str, kind: str, how_many: str
) -> None:
    played, way = SCENES[scene], KINDS[kind]
    stage = Stage(tmp_path, played, way, disk.path / "root")
    count = len(stage.calls())

    def cut() -> None:
        disk.cut_power()
        kill()

    found = []
    for at in chosen(count + 1, how_many):
        if not stage.play(at, cut):  # it returned, so all of it must be there whatever happens next
            assert at > count
            disk.cut_power()
        disk.power_up()
        found.append(found_afterwards(stage.root, way))
        assert found[-1] in played.found, f"{found[-1]} was found after call {at} of {count}"
    assert found[-1] == played.found[-1]


@pytest.mark.parametrize("how", ["save", "save_async"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_committed_survives(disk: Disk, kind: str, how: str) -> None:
    """Guards against: `latest` moves, and cleanup runs, before data is durable (KempnerForge 102)."""
    root, way = disk.path / "root", KINDS[kind]
    two_saved(root, way)

    def body() -> None:
        manager = manager_of(root, way)
        if how == "save":
            manager.save(way.state(3), step=3)
        else:
            manager.save_async(way.state(3), step=3).result()
        disk.cut_power()  # while the first is being deleted, or before that
        kill()

    assert dies(body)
    disk.power_up()
    with CheckpointReader(root) as reader:
        assert reader.latest_step() == 3
        assert is_state_of(3, reader.load(), way)
        assert is_state_of(2, reader.load(2), way)
    assert found_afterwards(root, way) in ([1, 2, 3], [2, 3])
