"""Epoch after epoch of a worker in the affinity order, as its training loop goes through them: what is left to give
out, when there is nothing yet, and when an epoch is over.

A *turn* is one iteration; a new one, or going elsewhere, ends the one before. Within a turn the job may be taken back:
then what was given out is not part of anything any more, and the loop is told so before it gets another batch.
"""

import time
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

from strata import background
from strata.core.events import Position
from strata.core.orders import EpochOrder
from strata.data.behind import behind, behind_together
from strata.data.grants import Piece
from strata.data.keeper import Keeper
from strata.data.ledger import Asks
from strata.data.levelled import Levelled
from strata.data.registered import RegisteredDataset
from strata.errors import RankFailed, Refused, StaleGeneration, StrataError
from strata.logs import get_logger
from strata.rpc import RpcError, Status

logger = get_logger("strata.data")

SAY_SECONDS = 10.0
"""Before it is said for the first time whom a worker waits for; then always twice as long."""
LOOK_SECONDS = 1.0


class Left(NamedTuple):
    """What is to be given out next, as long as nothing changes."""

    order: EpochOrder
    pieces: list[Piece]
    changes: int
    steps: int
    """So many batches at least, where every rank has as many."""


class Epochs:
    """For one thread at a time, but `position` for any."""

    def __init__(self, keeper: Keeper, asks: Asks, dataset: RegisteredDataset, wait_seconds: float) -> None:
        self._keeper, self._asks, self._dataset, self._wait_seconds = keeper, asks, dataset, wait_seconds
        self._epoch = 0
        self._point: int | None = None
        self._has_given = False
        self._gave_under: int | None = None
        self._turn = 0

    @property
    def epoch(self) -> int:
        """The one that the next batch is of: at first the one that the dataset is in. If it is over by the time that it
        is begun, its turn ends at once."""
        if self._point is None:
            with self._keeper.changed:
                self._hear()
        return self._epoch

    def begin(self) -> int:
        """A turn, which goes on from what the coordinator says now. If it does not answer, what was granted before is
        read on."""
        with self._keeper.changed:
            turn = self.interrupt()
            self._keeper.grants.consume()
            self._hear()
        return turn

    def _hear(self) -> None:
        """Where all go on from is asked for only now: whoever loads a checkpoint does so before, and decides that."""
        keeper = self._keeper
        keeper.trouble = None
        question, ends = keeper.ask(), time.monotonic() + self._wait_seconds
        while not keeper.has_answered(question):
            self._check_trouble()
            if keeper.is_silent and keeper.grants.left():
                break
            if time.monotonic() > ends:
                silence = RpcError(Status.UNAVAILABLE, f"nobody says whose the shards of {self._name} are")
                raise copy(keeper.last_error or silence)
            keeper.changed.wait(LOOK_SECONDS)
        self._has_given = False
        self._check_standing()

    def interrupt(self) -> int:
        """Whatever turn there is, is over."""
        with self._keeper.changed:
            self._turn += 1
            return self._turn

    def finish(self) -> None:
        """Nothing more is given out; what is in hand was trained on."""
        with self._keeper.changed:
            self.interrupt()
            self._keeper.grants.consume()

    def left(self, turn: int) -> Left | None:
        """Waits until there is something. None: the epoch is over, or the turn is."""
        waiting = _Waiting(self._wait_seconds)
        try:
            while True:
                with self._keeper.changed:
                    if self._turn != turn:
                        return None
                    if self._is_over():
                        self._epoch += 1
                        return None
                    grants = self._keeper.grants
                    pieces, steps = grants.left(), grants.steps_left
                    if pieces or steps:
                        return Left(grants.order, pieces, grants.changes, steps)
                    self._idle()
                    self._keeper.changed.wait(LOOK_SECONDS)
                self._look(waiting)
        finally:
            self._keeper.is_idle = False

    def give(self, turn: int, left: Left, pieces: Sequence[Piece]) -> bool:
        """These are in the hands of the training loop, unless something else is to be given out by now."""
        with self._keeper.changed:
            self._check_trouble()
            grants = self._keeper.grants
            if (self._turn, grants.changes) != (turn, left.changes):
                return False
            grants.give(pieces)
            self._has_given, self._gave_under = True, self._point
            return True

    def consume(self, turn: int) -> None:
        """What is in hand was trained on."""
        with self._keeper.changed:
            if self._turn != turn:
                return
            self._keeper.grants.consume()
            if self._keeper.grants.release() is not None:  # somebody waits for it
                self._keeper.wake()

    def given_since_point(self) -> Position | None:
        """What this process gave out in the epoch under the recovery point in force; None if nothing at all."""
        with self._keeper.changed:
            return self.position() if self._gave_under is not None and self._gave_under == self._point else None

    def position(self) -> Position | None:
        """What this worker has given out of the epoch; None before it has begun to read."""
        with self._keeper.changed:
            standing = self._keeper.grants.standing
            if standing is None or self._point is None:
                return None
            return Position(standing.version, standing.epoch, self._keeper.grants.own)

    # -- what is wrong, or over --------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        self._check_trouble()
        return self._check_standing() != self._epoch

    def _check_trouble(self) -> None:
        if self._keeper.trouble is not None:
            raise copy(self._keeper.trouble)

    def _check_standing(self) -> int:
        """The epoch that the dataset is in."""
        standing = self._keeper.grants.standing
        assert standing is not None, "a turn begins with an answer"
        if standing.version != self._dataset.version:
            raise Refused(f"{self._name} was replaced by version {standing.version}: make another loader")
        if standing.point != self._point:
            if self._has_given:
                raise StaleGeneration(
                    f"the job was taken back to recovery point {standing.point}, and the batches of {self._name} that "
                    "were given out since the one before are no part of it: load the checkpoint, then iterate again",
                    generation=self._keeper.grants.generation,
                )
            self._point, self._epoch = standing.point, standing.epoch
        return standing.epoch

    @property
    def _name(self) -> str:
        return f"dataset {self._dataset.dataset_id!r}, version {self._dataset.version}"

    # -- waiting for others ------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Others may die, and leave something behind: until the epoch is over for all, nobody is through."""
        if not self._keeper.is_idle:
            self._keeper.is_idle, self._keeper.moved = True, time.monotonic()
            self._keeper.wake()

    def _look(self, waiting: "_Waiting") -> None:
        still = time.monotonic() - self._keeper.moved
        if still > self._wait_seconds:
            raise RankFailed(
                f"nobody has got on with {self._name}, for {still:.0f} s, and this worker has nothing left to read. "
                f"{self._told()}. Is one of them stuck, or in the job without reading?"
            )
        if waiting.is_to_be_told():
            logger.info("this worker has nothing left of %s, and waits: %s", self._name, self._told())

    def _told(self) -> str:
        asks, name, grants = self._asks, self._dataset.dataset_id, self._keeper.grants
        try:
            if isinstance(grants, Levelled):
                return background.run(behind_together(asks, name, grants.ranks))
            return background.run(behind(asks, name))
        except StrataError as error:
            return f"the coordinator does not say who is behind: {error}"


class _Waiting:
    """When to say for whom."""

    def __init__(self, most_seconds: float) -> None:
        self._began, self._pause = time.monotonic(), min(SAY_SECONDS, most_seconds / 2)

    def is_to_be_told(self) -> bool:
        if time.monotonic() - self._began < self._pause:
            return False
        self._pause *= 2
        return True
