"""The demo's summary: what does not hold is said."""

from pathlib import Path

import pytest

from strata.demo import task
from strata.demo.summary import Checkpoint, Epoch, Worker, goodput_of, notes_of, problems, worker_of
from strata.demo.watching import Step, Watching
from strata.demo.worker import lines_of

OVER, RUNS = Epoch(0, True, 100, 100), Epoch(1, False, 100, 20)
SAVED = Checkpoint(6, 1000, 120, ["w0", "w1"], True)
LOSSES = [(1, 2.0), (2, 1.0)]


def test_where_all_holds_nothing_is_said() -> None:
    assert problems([OVER, RUNS], [SAVED], LOSSES, is_last=True) == []


@pytest.mark.parametrize(
    ("epochs", "checkpoints", "losses", "said"),
    [
        ([Epoch(0, True, 100, 99), Epoch(1, False, 100, 21)], [SAVED], LOSSES, "epoch 0 is over, and 1 of its samples"),
        ([Epoch(1, False, 100, 20)], [SAVED], LOSSES, "no proof of epoch 0"),
        ([OVER, RUNS], [], LOSSES, "no checkpoint"),
        ([OVER, RUNS], [Checkpoint(6, 1000, 120, ["w0"], False)], LOSSES, "step 6 is not the same on all ranks"),
        ([OVER, RUNS], [Checkpoint(6, 1000, 121 + task.BATCH, [], True)], LOSSES, "the ledger counts 120"),
        ([OVER, RUNS], [Checkpoint(6, 1000, 119, [], True)], LOSSES, "the ledger counts 120"),
        ([OVER, RUNS], [SAVED], LOSSES[::-1], "the loss did not fall"),
    ],
)
def test_what_does_not_hold_is_said(
    epochs: list[Epoch], checkpoints: list[Checkpoint], losses: list[tuple[int, float]], said: str
) -> None:
    found = problems(epochs, checkpoints, losses, is_last=True)
    assert any(said in each for each in found), found


def step(worker: str, at: float, world: str, fingerprint: str, number: int = 30) -> Step:
    return Step(worker, at, number, 0.5, at, loss=1.0, world=world, fingerprint=fingerprint)


def test_of_a_step_that_was_made_twice_the_last_world_counts() -> None:
    steps = [step("w0", 1.0, "a", "x"), step("w1", 1.0, "a", "x"), step("w0", 2.0, "b", "y"), step("w2", 1.5, "b", "z")]
    assert [(each.worker, each.fingerprint) for each in notes_of(30, steps)] == [("w2", "z"), ("w0", "y")]
    assert notes_of(60, steps) == []


def test_goodput_is_of_all_the_time_of_all_workers() -> None:
    long, short = Worker("w0", 90, 9.0, 6.0, None), Worker("w1", 90, 1.0, 0.0, None)
    assert goodput_of([long, short]) == 0.6
    assert goodput_of([]) == 0


def test_steps_that_were_made_again_after_a_worker_was_killed_do_not_count_for_it(tmp_path: Path) -> None:
    """Steps 2 and 3 were, without w1."""
    watching = Watching(tmp_path)
    before = [Step("w1", at, int(at), 0.5, at, loss=1.0, world="a") for at in (1.0, 2.0, 3.0)]
    after = [Step("w0", at, int(at - 3), 0.5, at, loss=1.0, world="b") for at in (5.0, 6.0)]
    watching.steps = {"w1": before, "w0": [before[0]._replace(worker="w0"), *after]}
    killed, left = (worker_of(watching.steps[name], watching.worlds()) for name in ("w1", "w0"))
    assert (killed.wall_seconds, killed.useful_seconds) == (3.0, 0.5)
    assert (left.wall_seconds, left.useful_seconds) == (6.0, 3.0)
    assert goodput_of([killed, left]) == pytest.approx(3.5 / 9)


def test_half_a_line_of_a_worker_that_was_killed_is_not_read(tmp_path: Path) -> None:
    path = lines_of(tmp_path, "w0")
    watching = Watching(tmp_path)
    path.write_text('{"at": 1.0, "step": 1, "goodput": 0.5, "wall_seconds": 2.0, "loss": 3.0}\n{"at": 2.0, "st')
    watching.look("127.0.0.1:1", ["w0"])
    assert watching.losses() == [(1, 3.0)]
    with path.open("a") as file:
        file.write('ep": 1, "goodput": 0.5, "wall_seconds": 3.0, "loss": 2.0}\n')
    watching.look("127.0.0.1:1", ["w0"])
    assert watching.losses() == [(1, 2.0)], "made again, it is as it was made last"
    assert not watching.is_serving


def test_the_gradients_are_those_of_the_loss() -> None:
    state = task.beginning()
    for name in task.LAYERS:
        state[name] = state[name].astype("float64")
    x, y = state["in"][:, :7].T.copy(), state["hidden"][0, :7].copy()
    loss, found = task.gradients(state, x, y)
    for name, gradient in zip(task.LAYERS, found, strict=True):
        place = (3,) * gradient.ndim if gradient.shape[-1] > 3 else (0,) * gradient.ndim
        before, nudge = state[name][place], 1e-6
        state[name][place] = before + nudge
        above, _ = task.gradients(state, x, y)
        state[name][place] = before
        assert (above - loss) / nudge == pytest.approx(float(gradient[place]), rel=1e-3, abs=1e-4), name
