"""A rank that stands still in the middle of a save, is taken for dead, and wakes up when the job has gone on without
it.
"""

from typing import NamedTuple

from strata import background
from strata.checkpoint.lineage import Term, read_lineage
from tests.chaos.ranks import started
from tests.chaos.recovering import SECOND_RUN, Job, Trial, assert_same, check_whole, let_marks_run_out
from tests.chaos.steps import Doom


class Woken(NamedTuple):
    """What became of it."""

    struck: str
    """The step at which it stood still; empty if it never did."""
    took_over: bool
    """Whether it has begun a term since."""
    loaded: int
    """The step that it loaded, or -1: if it is the one that the others saved last, it slept before it looked, and was
    not there before."""


def sleep_through(job: Job, trial: Trial, victim: int, at: int) -> Woken:
    """At that step it stands still. All ranks are started anew, go back to step 2, and save 3 and 4. It wakes up; and
    they save 5, unless it has taken over."""
    berth = job.berth("second")._replace(patience=trial.patience, reach=trial.reach)
    with started(berth, victim, Doom(at, stops=True)) as run:
        for what, given in SECOND_RUN:
            run.tell(what, **given)
        zombie = run.ranks[victim]
        if not zombie.stands_still():
            return Woken("", False, -1)
        for rank in run.ranks:
            for _ in SECOND_RUN if rank is not zombie else ():
                assert not rank.hear().gone
        with started(job.berth("third")) as third:
            third.each("load", step=2)
            for step in (3, 4):
                third.each("save", step=step, by="third")
            third.each("wait")
            theirs = _newest(job)
            zombie.wake()
            loaded, *_ = [zombie.hear() for _ in SECOND_RUN]
            took_over = _newest(job) != theirs
            if not took_over:
                for number, state in enumerate(third.each("load")):
                    assert_same(state, number, 4, "third")
                third.each("save", step=5, by="third")
                third.each("close")
        return Woken(zombie.struck, took_over, loaded.value["step"] if loaded.well else -1)


def _newest(job: Job) -> Term | None:
    return background.run(read_lineage(job.store())).newest


def check_undisturbed(job: Job, latest: int) -> None:
    """A fourth run finds what the third saved last, and in the end nothing is left of the zombie."""
    let_marks_run_out(job)
    with started(job.berth("fourth")) as run:
        for rank, state in enumerate(run.each("load")):
            assert_same(state, rank, latest, "third")
        for step in (6, 7):  # as many as are kept: what was left behind goes
            run.each("save", step=step, by="fourth")
        run.each("close")
    check_whole(job, [6, 7])
