"""A state on its way into the arena: filled by the caller's thread, and taken from there by the loop."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeAlias

from strata.checkpoint.arena import Arena
from strata.checkpoint.plan import FilePlan
from strata.checkpoint.preparing import Prepared
from strata.checkpoint.snapshot import Snapshot
from strata.checkpoint.uncollected import uncollected
from strata.checkpoint.writing import Filled

Round: TypeAlias = tuple[Snapshot, Filled]
"""One filling, and how far it is."""


class Stage:
    """Where a state is copied to. `may_repeat`: the loop may ask for a second round, of a part of it, before the caller
    may go on; it says so, or that there is none, when it has the first."""

    def __init__(
        self, prepared: Prepared, arena: Arena, loop: asyncio.AbstractEventLoop, *, may_repeat: bool = False
    ) -> None:
        self.prepared = prepared
        self._block = arena.take(sum(file.room for file in prepared.files))
        self.snapshot = Snapshot(prepared.files, self._block)
        self.filled = Filled(loop)
        self._loop = loop
        self._second: Future[Round | None] = Future()
        if not (may_repeat and self.snapshot.takes_turns):
            self._second.set_result(None)

    # -- in the caller's thread --------------------------------------------------------------------------------------

    def fill(self, *, alone: bool) -> None:
        """A copy that fails is told to the writer too.

        `alone`: writing begins when the copy is made, and does not slow it down.
        """
        self._fill(self.snapshot, self.filled, alone=alone)
        second = self._second.result()
        if second is not None:
            self._fill(*second, alone=alone)

    def _fill(self, snapshot: Snapshot, filled: Filled, *, alone: bool) -> None:
        tell = _nobody if alone and not snapshot.takes_turns else filled.tell
        try:
            with uncollected():
                snapshot.fill(self.prepared.sources, tell)
            filled.tell(len(snapshot.segments) - 1)
        except BaseException as error:
            filled.fail(error)
            raise

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


def _nobody(number: int) -> None:
    """Is told."""
