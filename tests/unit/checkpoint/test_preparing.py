"""Plans that are used again: as long as nothing but the numbers changed, and no longer."""

from typing import Any

import numpy as np
import pytest
import torch

from strata import background
from strata.checkpoint.arena import Arena
from strata.checkpoint.preparing import Planner, Prepared
from strata.checkpoint.staging import Stage


def names(prepared: Prepared) -> list[str]:
    return [each.name for each in prepared.stored]


def state(**arrays: Any) -> dict[str, Any]:
    return {"a": torch.ones(3), "b": torch.ones(2, 2), **arrays}


def test_the_plan_of_a_state_is_used_again() -> None:
    planner = Planner()
    first, second = planner.prepare(state(step=1)), planner.prepare(state(step=2))
    assert second.files is first.files
    assert second.stored is first.stored
    assert second.skeleton["dict"]["step"] == 2
    assert len(second.sources) == 2
    assert second.sources is not first.sources


@pytest.mark.parametrize(
    "other",
    [state(a=torch.ones(4)), state(a=torch.ones(3).double()), state(c=torch.ones(1)), {"a": torch.ones(3)}, {}],
    ids=["shape", "type", "more", "less", "nothing"],
)
def test_another_state_has_another_plan(other: dict[str, Any]) -> None:
    planner = Planner()
    planner.prepare(state())
    found, anew = planner.prepare(other), Planner().prepare(other)
    assert [file.header for file in found.files] == [file.header for file in anew.files]
    assert (found.leaves, found.stored) == (anew.leaves, anew.stored)


def test_arrays_that_come_to_share_memory_are_tied_and_come_apart_again() -> None:
    planner, tensor = Planner(), torch.ones(3)
    assert names(planner.prepare({"a": tensor, "b": torch.ones(3)})) == ["a", "b"]
    assert names(planner.prepare({"a": tensor, "b": tensor})) == ["a"]
    assert names(planner.prepare({"a": tensor, "b": tensor[1:]})) == ["a"]
    assert names(planner.prepare({"a": tensor, "b": torch.ones(3)})) == ["a", "b"]


def test_what_lies_nowhere_is_known_by_itself() -> None:
    planner, empty, other = Planner(), torch.empty(0), np.empty((0, 2))
    assert names(planner.prepare([empty, other])) == ["0", "1"]
    assert names(planner.prepare([empty, empty, other])) == ["0", "2"]


@pytest.mark.parametrize(
    ("size", "beside", "room"), [(40, 0, 42), (40, 30, 42), (80, 0, 64), (80, 20, 44), (80, 60, 32)]
)
def test_what_writing_takes_is_left_to_it_where_memory_is_short(size: int, beside: int, room: int) -> None:
    mib = 1 << 20
    prepared = Planner().prepare({"w": np.zeros(size * mib, np.uint8)})
    stage = Stage(prepared, Arena(64 * mib), background.loop(), beside=beside * mib)
    assert len(stage.snapshot.arena) == room * mib
