"""Where one stands in the epochs of an order, counted by batches that were given out: exact resume.

A DataLoader asks for batches long before it gives them out. So what goes through `over` is counted, as it is given; if
a DataLoader was iterated without it nobody knows what was consumed, and `state_dict()` is an error and not a guess.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from strata.core.ids import check_int
from strata.data.position import Position, order_at, resumed
from strata.errors import InvalidInput

T = TypeVar("T")


class Cursor:
    """A position, the order of its epoch, and whether all that was given out is counted."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._order = order_at(position)
        self._is_counted = True
        self._is_over = False
        self._moves = 0

    @property
    def epoch(self) -> int:
        """The one that the next batch is of."""
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The next one of the epoch: so many were given out."""
        return self._position.batch

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: what was given out is consumed, and nothing else. The same on all ranks."""
        if not self._is_counted:
            raise InvalidInput(
                "which batches were consumed is not known, since a DataLoader asks for them ahead: iterate over "
                f"{self._name}.over(data_loader) instead of the DataLoader itself"
            )
        return self._position.plain()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, at any number of ranks. What was saved with another order, or of other data, is refused."""
        self._go_to(resumed(self._position, Position.of(state)))

    def set_epoch(self, epoch: int) -> None:
        """From its first batch on."""
        self._go_to(self._position.at(check_int(epoch, "epoch"), 0))

    def over(self, data_loader: Iterable[T]) -> Iterator[T]:
        """The batches of a DataLoader that gets them from here, each counted as it is given out. At the end of the
        epoch the next one's turn comes."""
        check_order(data_loader)
        epoch, moves = self.epoch, self._moves
        self._is_over = True
        try:
            for given, batch in enumerate(self._begin(data_loader), self.batch + 1):
                self._give(epoch, given)
                yield batch
                if self._moves != moves:
                    return  # it was sent elsewhere meanwhile
        finally:
            self._is_over = False
            self._ended()
        if self.batch < self._order.batches:
            raise InvalidInput(
                f"the DataLoader ended after batch {self.batch} of {self._order.batches}: does it get its batches from "
                f"this {self._name}?"
            )
        self.set_epoch(epoch + 1)

    @property
    def _name(self) -> str:
        """As people call what this is."""
        return "loader"

    def _begin(self, data_loader: Iterable[T]) -> Iterator[T]:
        """For those who must know when a DataLoader begins."""
        return iter(data_loader)

    def _ended(self) -> None:
        """For those who must know when nothing more is taken from it."""

    def _asked(self) -> None:
        """Somebody else gives out what was asked for: known to be counted only inside of `over`."""
        self._is_counted = self._is_counted and self._is_over

    def _give(self, epoch: int, given: int) -> None:
        if given > self._order.batches:
            raise InvalidInput(
                f"the DataLoader gave more than the {self._order.batches} batches of the epoch: it does not get them "
                f"from this {self._name}, or began elsewhere"
            )
        self._position, self._is_counted = self._position.at(epoch, given), True

    def _go_to(self, position: Position) -> None:
        self._position, self._is_counted = position, True
        self._order = order_at(position)
        self._moves += 1


def check_order(data_loader: object) -> None:
    """InvalidInput if it is a DataLoader that puts batches together, or gives them in another order than it asked."""
    if getattr(data_loader, "batch_size", None) is not None:
        raise InvalidInput("the DataLoader makes batches of batches: give it batch_size=None")
    if not getattr(data_loader, "in_order", True):
        raise InvalidInput(
            "the DataLoader gives batches in the order in which they are ready, which is another one each time: leave "
            "in_order at True"
        )
