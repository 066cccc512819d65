"""Which checkpoints a rule lets go of, as a question of nothing but steps, runs, metrics and pins."""

from collections.abc import Collection, Sequence

import pytest

from strata.checkpoint.manifest import Metadata
from strata.checkpoint.retention import doomed
from strata.checkpoint.store import Folder
from strata.core.settings import Retention


def saved(step: int, term: int = 1, loss: float | None = None) -> tuple[Folder, Metadata]:
    metrics: dict[str, float | str] = {} if loss is None else {"loss": loss}
    return Folder(step), Metadata(1, "job", step, 0, term, f"{term}-ab", 0.0, 1, metrics, [], [], "0")


def gone(
    rule: Retention,
    everything: Sequence[tuple[Folder, Metadata]],
    left_behind: Collection[int] = (),
    pinned: Collection[int] = (),
) -> list[int]:
    """The steps that go. Those that are left behind are not on the line."""
    line = {folder for folder, _ in everything if folder.step not in left_behind}
    return [folder.step for folder in doomed(everything, line, {f"step_{step}" for step in pinned}, rule)]


def test_without_a_rule_everything_stays() -> None:
    assert gone(Retention(), [saved(step) for step in range(4)]) == []


def test_as_many_stay_as_are_to_be_kept_and_what_is_pinned_beside_them() -> None:
    steps = [saved(step) for step in range(1, 7)]
    assert gone(Retention(keep_count=2), steps) == [1, 2, 3, 4]
    assert gone(Retention(keep_count=2), steps, pinned=[1, 4]) == [2, 3]


def test_the_latest_stays_where_the_rule_names_no_count() -> None:
    assert gone(Retention(keep_every=10), [saved(10), saved(20), saved(21), saved(22)]) == [21]


def test_every_so_many_is_counted_in_steps() -> None:
    assert gone(Retention(keep_every=4), [saved(3), saved(4), saved(7), saved(8), saved(9)]) == [3, 7]


@pytest.mark.parametrize(("mode", "stays"), [("min", 2), ("max", 3)])
def test_the_best_stay_and_a_loss_that_is_no_number_is_none_of_them(mode: str, stays: int) -> None:
    steps = [saved(step, loss=loss) for step, loss in enumerate([5.0, 1.0, 9.0, float("nan"), None, None], 1)]
    rule = Retention(best_metric="loss", best_mode=mode)  # type: ignore[arg-type]
    assert gone(rule, steps) == sorted({1, 2, 3, 4, 5} - {stays})


def test_as_many_of_the_best_stay_as_are_to_be_kept() -> None:
    steps = [saved(1, loss=1.0), saved(2, loss=2.0), saved(3, loss=3.0), saved(4, loss=4.0)]
    assert gone(Retention(best_metric="loss", best_count=2), steps) == [3]


def test_what_was_left_behind_goes_once_as_much_is_there_that_is_new() -> None:
    """Until then it may be needed: who went back may find that it was a mistake."""
    behind = [saved(1), saved(5), saved(6)]
    rule = Retention(keep_count=2)
    assert gone(rule, [*behind, saved(2, term=2)], left_behind=[5, 6]) == []
    assert gone(rule, [*behind, saved(2, term=2), saved(3, term=2)], left_behind=[5, 6]) == [1, 5, 6]


def test_what_was_left_behind_is_none_of_those_to_keep() -> None:
    steps = [saved(1), saved(8), saved(9), saved(2, term=2), saved(3, term=2)]
    assert gone(Retention(keep_count=2), steps, left_behind=[8, 9]) == [1, 8, 9]


def test_where_all_was_left_behind_nothing_goes() -> None:
    assert gone(Retention(keep_count=1), [saved(1), saved(2)], left_behind=[1, 2]) == []
