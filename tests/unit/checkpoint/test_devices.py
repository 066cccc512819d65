"""What cannot be read into comes through a little memory, in turns: parts of arrays that do not lie in one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from strata.checkpoint import CheckpointManager, devices
from strata.checkpoint.frameworks import Block, Copying, framework_named
from strata.errors import CheckpointDamaged, Unstorable
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.spread import spread

HALF = 4032
"""No multiple of a page, as memory comes in."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The sizes of what was copied at once."""
    found: list[list[int]] = []
    arrays: Any = framework_named("torch")
    copy = arrays.copy_to_device

    def recorded(pairs: Iterable[tuple[Any, Block]]) -> Copying:
        own = list(pairs)
        found.append([block.nbytes for _, block in own])
        return copy(own)  # type: ignore[no-any-return]

    monkeypatch.setattr(devices, "HALF_BYTES", HALF)
    monkeypatch.setattr(arrays, "copy_to_device", recorded)
    return found


LAYOUTS: dict[str, list[Placement]] = {
    "rows": [Shard(0), Replicate()],
    "boxes": [Shard(0), Shard(1)],
    "columns": [Shard(1), Shard(1)],
    "woven": [_StridedShard(1, split_factor=3), Replicate()],
}


@pytest.mark.slow
@pytest.mark.parametrize("stored", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_parts_that_do_not_lie_in_one_come_in_turns(
    tmp_path: Path, sent: list[list[int]], stored: str, dtype: torch.dtype
) -> None:
    whole = torch.arange(40 * 101).reshape(40, 101).to(dtype)
    room = [{"w": each} for each in spread(torch.zeros_like(whole), (2, 2), LAYOUTS["woven"])]
    expected = spread(whole, (2, 2), LAYOUTS["woven"])
    with Crew(tmp_path, 4) as crew:
        crew.save([{"w": each} for each in spread(whole, (2, 2), LAYOUTS[stored])], 1)
        crew.each(lambda rank, manager: manager.load(into=room[rank]))
    for found, wanted in zip(room, expected, strict=True):
        assert torch.equal(found["w"].to_local(), wanted.to_local())
    assert len(sent) >= 4 * whole.nbytes // 2 // HALF
    assert max(sum(sizes) for sizes in sent) <= HALF


def test_damage_is_found_before_anything_of_it_is_copied(tmp_path: Path, sent: list[list[int]]) -> None:
    whole = torch.arange(40 * 101).reshape(40, 101).float()
    room = spread(torch.zeros_like(whole), (2, 2), LAYOUTS["woven"])
    with Crew(tmp_path, 4) as crew:
        crew.save([{"w": each} for each in spread(whole, (2, 2), LAYOUTS["rows"])], 1)
        for path in tmp_path.rglob("*.safetensors"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        with pytest.raises(CheckpointDamaged, match="a mixture now"):
            crew.managers[0].load(into={"w": room[0]})
    assert not sent
    assert not room[0].to_local().any()


def test_a_part_whose_elements_are_one_in_memory_is_refused(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        (one,) = spread(torch.arange(6.0).reshape(2, 3), (1,), [Shard(0)])
        manager.save({"w": one}, 1)
        own = DTensor.from_local(torch.zeros(1, 3).expand(2, 3), one.device_mesh, [Shard(0)])
        with pytest.raises(Unstorable, match=r"nothing was loaded. w: several elements"):
            manager.load(into={"w": own})
