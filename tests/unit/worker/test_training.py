"""What a training loop goes on from, whatever its state is; and what the coordinator is not told of its data."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import CheckpointManager, Training
from strata.checkpoint.datapositions import messages
from strata.checkpoint.handle import SaveHandle
from strata.core.events import Position
from strata.data import Loader
from strata.errors import InvalidInput, SaveAbandoned
from tests.integration.data.jobs import BATCH, ROWS, write_rows

STEPS = ROWS // BATCH


def made(folder: Path, state: Any, **how: Any) -> Training:
    loader, manager = Loader(folder / "rows", BATCH, format="parquet"), CheckpointManager(folder / "checkpoints")
    return Training(state, loader, manager, **how)


def trained(folder: Path, state: dict[str, Any], epochs: int) -> int:
    """Adds all sample numbers to the state's total. Gives the steps that this took."""
    steps = 0
    with made(folder, state, epochs=epochs, save_every=5) as training:
        for batch in training:
            state["total"] = state["total"] + batch["id"].sum()
            steps += 1
    return steps


def zero(*, is_changeable: bool) -> "np.ndarray[Any, Any]":
    found = np.zeros((1,), np.int64)
    found.flags.writeable = is_changeable
    return found


@pytest.mark.parametrize("is_changeable", [True, False])
def test_a_dict_of_arrays_goes_on_whether_or_not_they_can_be_changed(tmp_path: Path, is_changeable: bool) -> None:
    """Those of JAX never can: its example is tested apart, since it does not go with processes that are forked."""
    write_rows(tmp_path / "rows")
    (tmp_path / "alone").mkdir()
    write_rows(tmp_path / "alone" / "rows")
    alone, first, again = ({"total": zero(is_changeable=is_changeable), "name": name} for name in ("x", "x", "y"))
    assert trained(tmp_path / "alone", alone, 2) == 2 * STEPS
    assert trained(tmp_path, first, 1) == STEPS
    assert trained(tmp_path, again, 2) == STEPS, "the first epoch is not gone through again"
    assert again == alone


def test_arrays_that_can_be_changed_are_filled_where_they_lie(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows")
    weights = np.zeros(3)
    state = {"total": np.zeros((), np.int64), "weights": weights}
    weights += 1
    trained(tmp_path, state, 1)
    weights[:] = 7
    trained(tmp_path, state, 1)
    assert state["weights"] is weights
    assert weights.tolist() == [1, 1, 1]


def test_whoever_holds_a_part_of_the_state_has_what_was_loaded(tmp_path: Path) -> None:
    """A counter of steps, as optimizers have one, in a dict of its own."""
    write_rows(tmp_path / "rows")
    for begun in (0, STEPS):
        optimizer: dict[str, Any] = {"t": 0, "m": np.zeros(1)}
        schedule: list[Any] = [0, {"rate": 1.0}]
        state = {"total": np.zeros((), np.int64), "optimizer": optimizer, "schedule": schedule}
        with made(tmp_path, state, epochs=1 + begun // STEPS, save_every=5) as training:
            for _ in training:
                optimizer["t"] += 1
                schedule[0] += 1
                schedule[1]["rate"] /= 2
        assert (optimizer["t"], schedule) == (begun + STEPS, [begun + STEPS, {"rate": 0.5 ** (begun + STEPS)}])
        assert state["optimizer"] is optimizer
        assert state["schedule"] is schedule


def test_a_list_is_a_state_as_good_as_a_dict(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows")
    for epochs in (1, 2):
        state: list[Any] = [np.zeros(1), 0]
        with made(tmp_path, state, epochs=epochs) as training:
            for _ in training:
                state[0] += 1
                state[1] += 1
        assert state == [epochs * STEPS] * 2


@pytest.mark.parametrize("state", [b"weights", (np.zeros(1), 3), 7, None])
def test_what_cannot_be_changed_is_refused_before_anything_is_saved(tmp_path: Path, state: Any) -> None:
    write_rows(tmp_path / "rows")
    with pytest.raises(InvalidInput, match="put it into a dict"):
        made(tmp_path, state)


def test_a_loop_that_is_left_may_be_entered_again_and_goes_on_behind_the_last_checkpoint(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows")
    state = {"steps": 0}
    with made(tmp_path, state, save_every=2) as training:
        for _ in training:
            if training.completed == 5:
                break
            state["steps"] += 1
        left = training.goodput
        assert training.goodput.seconds["step"] == left.seconds["step"], "what is done outside of the loop is no step"
        for _ in training:
            state["steps"] += 1
    assert (state["steps"], training.completed, training.goodput.steps) == (STEPS, STEPS, STEPS)
    assert training.goodput.lost_steps == 1


def test_training_does_not_end_well_if_its_last_save_was_given_up_in_silence(tmp_path: Path) -> None:
    """`wait` of a manager raises nothing for a save that its own process gave up: the loop looks at the save itself."""
    write_rows(tmp_path / "rows")
    with made(tmp_path, {"steps": 0}) as training:
        save_async = training.manager.save_async

        def given_up(state: Any, step: int, **named: Any) -> SaveHandle:
            handle = SaveHandle(step)
            handle.failed(SaveAbandoned("the save was given up"))
            return handle

        training.manager.save_async = given_up  # type: ignore[assignment, method-assign]
        with pytest.raises(SaveAbandoned):
            list(training)
        training.manager.save_async = save_async  # type: ignore[method-assign]
        list(training)  # and once it is told, all goes on from the last checkpoint
        assert training.manager.latest_step() == training.completed == STEPS


def test_a_last_save_that_the_coordinator_skips_is_made_again(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows")
    with made(tmp_path, {"steps": 0}) as training:
        save_async = training.manager.save_async

        def skipped(state: Any, step: int, **named: Any) -> SaveHandle:
            training.manager.save_async = save_async  # type: ignore[method-assign]
            handle = SaveHandle(step)
            threading.Timer(0.2, handle.skip, ["step 8 is still being saved"]).start()
            return handle

        training.manager.save_async = skipped  # type: ignore[assignment, method-assign]
        list(training)
        assert training.manager.latest_step() == training.completed == STEPS


def test_the_step_is_that_of_the_state_which_was_loaded_also_if_another_is_committed_meanwhile(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows")
    with made(tmp_path, {"steps": 0}, epochs=2, save_every=4) as training:
        for _ in training:
            training.state["steps"] += 1
            if training.completed == 6:
                break
    again = made(tmp_path, {"steps": 0}, epochs=2)
    load = again.manager.load

    def load_slowly(*given: Any, **named: Any) -> Any:
        found = load(*given, **named)
        with CheckpointManager(tmp_path / "checkpoints") as another:
            another.save({"steps": 20}, 20)
        return found

    again.manager.load = load_slowly  # type: ignore[method-assign]  # what another process does just then
    with again:
        next(iter(again))
        assert (again.completed, again.state["steps"]) == (4, 4)


def test_an_error_of_the_data_takes_no_time_from_what_comes_behind_it(tmp_path: Path) -> None:
    def damaged(batch: Any) -> Any:
        raise ValueError("not to be read")

    write_rows(tmp_path / "rows")
    loader, manager = Loader(tmp_path / "rows", BATCH, format="parquet", map=damaged), CheckpointManager(tmp_path / "c")
    with Training({"total": 0}, loader, manager) as training:
        with pytest.raises(ValueError, match="not to be read"):
            next(iter(training))
        data = training.goodput.seconds["data"]
        assert training.goodput.seconds["data"] == data


def test_a_batch_may_have_more_than_columns(tmp_path: Path) -> None:
    def extended(batch: Any) -> Any:
        return {"kind": 3, "name": "rows", "scale": np.float64(0.5), **batch}

    write_rows(tmp_path / "rows")
    loader = Loader(tmp_path / "rows", BATCH, format="parquet", map=extended)
    with Training({"total": 0}, loader, CheckpointManager(tmp_path / "checkpoints")) as training:
        assert [batch["kind"] for batch in training] == [3] * STEPS
    assert training.goodput.samples == STEPS * BATCH


def test_the_coordinator_is_not_told_of_data_that_is_not_registered_with_it() -> None:
    found = messages({"rows": Position(2, 1, [0, 40], "order"), "data": Position(0, 1, [0, 40], "order")})
    assert {name: each.version for name, each in found.items()} == {"rows": 2}
