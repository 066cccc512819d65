"""A state on its way into the arena: filled by the caller's thread, and taken from there by the loop."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from strata.checkpoint.arena import Arena
from strata.checkpoint.frameworks import COPIED, Copying
from strata.checkpoint.plan import FilePlan
from strata.checkpoint.preparing import Prepared
from strata.checkpoint.snapshot import Snapshot
from strata.checkpoint.sources import Elsewhere
from strata.checkpoint.uncollected import uncollected
from strata.checkpoint.writing import Filled

if TYPE_CHECKING:  # needs torch
    from strata.checkpoint.overlap import Deferred, OptimizerOverlap

TURNS_LEAST_BYTES = 32 << 20
"""Turns that are shorter than half of this are slow, and a budget must not make them so."""

Round: TypeAlias = tuple[Snapshot, Filled]
"""One filling, and how far it is."""


class Stage:
    """Where a state is copied to. `may_repeat`: the loop may ask for a second round, of a part of it, before the caller
    may go on; it says so, or that there is none, when it has the first. `beside`: what writing takes of the budget if
    the state must take turns."""

    def __init__(
        self,
        prepared: Prepared,
        arena: Arena,
        loop: asyncio.AbstractEventLoop,
        *,
        may_repeat: bool = False,
        beside: int = 0,
    ) -> None:
        self.prepared = prepared
        self._block = arena.take(_room(prepared, arena.budget_bytes, beside), pinned=prepared.on_gpu)
        self.snapshot = Snapshot(prepared.files, self._block)
        self.filled = Filled(loop)
        self._failed: BaseException | None = None
        self._loop = loop
        self._second: Future[Round | None] = Future()
        if not (may_repeat and self.snapshot.takes_turns):
            self._second.set_result(None)

    # -- in the caller's thread --------------------------------------------------------------------------------------

    def fill(self, *, alone: bool, overlap: "OptimizerOverlap | None" = None) -> "Deferred | None":
        """A copy that fails is told to the writer too.

        `alone`: writing begins when the copy is made, and does not slow it down. `overlap`: what optimizers own may be
        copied later; then `finish` is still to be called, by any thread.
        """
        with self._telling_of_errors():
            can_wait = None if overlap is None else overlap.owned()
            going_on = self._fill(self.snapshot, self.filled, alone=alone, can_wait=can_wait)
            if overlap is not None and can_wait is not None and going_on is not COPIED:
                waiting = (each.value for each in self.prepared.sources if isinstance(each, Elsewhere))
                return overlap.defer(going_on, [value for value in waiting if can_wait(value)])
            self.filled.tell(len(self.snapshot.segments) - 1)
            second = self._second.result()
            if second is not None:
                self._fill(*second, alone=alone)
                second[1].tell(len(second[0].segments) - 1)
            self.prepared.let_go()
        return None

    def finish(self, deferred: "Deferred") -> None:
        """Until the rest is copied."""
        with self._telling_of_errors():
            deferred.finish()
            self.filled.tell(len(self.snapshot.segments) - 1)
            self.prepared.let_go()

    def _fill(
        self,
        snapshot: Snapshot,
        filled: Filled,
        *,
        alone: bool,
        can_wait: Callable[[Any], bool] | None = None,
    ) -> Copying:
        tell = _nobody if alone and not snapshot.takes_turns else filled.tell
        with uncollected():
            return snapshot.fill(self.prepared.sources, tell, can_wait)

    @contextmanager
    def _telling_of_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not self._is_writers(error):  # asked first: once it is told, it is the writer's, too
                self._failed = error
            self.filled.fail(error)
            second = self._second.result() if self._second.done() and not self._second.exception() else None
            if second is not None:
                second[1].fail(error)
            raise

    def is_given_up(self, error: BaseException) -> bool:
        """Whether this was raised because nobody writes any more, and not because a copy failed."""
        return error is not self._failed

    def _is_writers(self, error: BaseException) -> bool:
        if error is self.snapshot.given_up or not self._second.done():
            return error is self.snapshot.given_up
        if self._second.exception() is not None:
            return error is self._second.exception()
        second = self._second.result()
        return second is not None and error is second[0].given_up

    # -- on the loop -------------------------------------------------------------------------------------------------

    def enough(self) -> None:
        """There is no second round."""
        if not self._second.done():
            self._second.set_result(None)

    def again(self, plans: Sequence[FilePlan]) -> Round:
        """A second round, of what these files hold."""
        made = (Snapshot(plans, self._block), Filled(self._loop))
        self._second.set_result(made)
        return made

    def give_up(self, error: BaseException) -> None:
        """Nobody writes any more: whoever fills stops, and raises this."""
        self.snapshot.give_up(error)
        if not self._second.done():
            self._second.set_exception(error)
            return
        second = self._second.result()
        if second is not None:
            second[0].give_up(error)


def _room(prepared: Prepared, budget: int, beside: int) -> int:
    """Of the arena: all that is wanted, or what is left of the budget."""
    whole = sum(file.room for file in prepared.files)
    return whole if whole <= budget else max(budget - beside, min(budget, TURNS_LEAST_BYTES))


def _nobody(number: int) -> None:
    """Is told."""
