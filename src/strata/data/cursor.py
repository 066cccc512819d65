"""Where one stands in the epochs of an order, counted by batches that were given out: exact resume."""

from collections.abc import Mapping
from typing import Any

from strata.core.ids import check_int
from strata.data.giving import Giving
from strata.data.position import Position, order_at, resumed
from strata.errors import InvalidInput


class Cursor(Giving):
    """A position, and the order of its epoch."""

    def __init__(self, position: Position) -> None:
        super().__init__()
        self._position = position
        self._order = order_at(position)

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
        self._check_counted()
        return self._position.plain()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, at any number of ranks. What was saved with another order, or of other data, is refused."""
        self._go_to(resumed(self._position, Position.of(state), self._change))

    def set_epoch(self, epoch: int) -> None:
        """From its first batch on."""
        self._go_to(self._position.at(check_int(epoch, "epoch"), 0))

    def _change(self, then: str) -> str:
        """In what the data is another than that of a fingerprint: the end of a sentence."""
        return "it has another number of samples"

    @property
    def _name(self) -> str:
        return "loader"

    def _where(self) -> tuple[int, ...]:
        return self.epoch, self.batch

    def _count(self) -> None:
        if self.batch == self._order.batches:
            raise InvalidInput(
                f"the DataLoader gave more than the {self._order.batches} batches of the epoch: it does not get them "
                f"from this {self._name}, or began elsewhere"
            )
        self._give(self.epoch, self.batch + 1)

    def _at_end(self) -> None:
        if self.batch < self._order.batches:
            raise InvalidInput(
                f"the DataLoader ended after batch {self.batch} of {self._order.batches}: does it get its batches from "
                f"this {self._name}?"
            )
        self._go_to(self._position.at(self.epoch + 1, 0))
        self._worked_on()

    def _give(self, epoch: int, given: int) -> None:
        self._position = self._position.at(epoch, given)
        self._gave()

    def _go_to(self, position: Position) -> None:
        self._position = position
        self._order = order_at(position)
        self._moved()
