"""What is given out, counted as it is: by whoever makes it, or by a DataLoader that gets it from here.

A DataLoader asks for batches long before it gives them out. So what goes through `over` is counted, as it is given; if
a DataLoader was iterated without it nobody knows what was consumed, and `state_dict()` is an error and not a guess.

Two iterations at a time would each give out what the other does: when one begins, those of before end.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strata.errors import InvalidInput

if TYPE_CHECKING:
    from strata.data.workers import Shared

T = TypeVar("T")


class Giving:
    """Whether all that was given out is counted, and which iteration is the last. What it gives is its subclass's."""

    def __init__(self) -> None:
        self._is_counted = True
        self._moves = 0
        """Counts up whenever it is sent elsewhere, or iterated anew: an iteration of before ends."""
        self._over: int | None = None
        """Which iteration `over` has begun, as `_moves` counts them."""
        self._shared: Shared | None = None
        """With copies in the workers of a DataLoader, once there may be some."""

    def over(self, data_loader: Iterable[T]) -> Iterator[T]:
        """The batches of a DataLoader that gets them from here, each counted as it is given out. At the end of an epoch
        the next one's turn comes."""
        check_order(data_loader)
        self._starting()
        moves = self._over = self._iterated()
        try:
            for batch in self._begun(data_loader):
                self._count()
                yield batch
                if self._moves != moves:
                    return
                self._worked_on()
        finally:
            if self._over == moves:  # and no other has begun
                self._over = None
                self._tell()
        self._at_end()

    # -- what subclasses say ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _name(self) -> str:
        """As people call what this is."""

    @abstractmethod
    def _where(self) -> tuple[int, ...]:
        """Where it stands, as its copies in workers must know it."""

    @abstractmethod
    def _count(self) -> None:
        """The next batch is given out by a DataLoader."""

    @abstractmethod
    def _at_end(self) -> None:
        """A DataLoader has no more."""

    def _starting(self) -> None:
        """For those who must know where to begin before batches are given out."""

    def _worked_on(self) -> None:
        """For those who must know that whoever was given a batch wants the next: all so far was worked on."""

    # -- what they call --------------------------------------------------------------------------------------------

    def _iterated(self) -> int:
        """An iteration begins; `_moves` while it is the last."""
        self._moves += 1
        return self._moves

    def _asked(self) -> None:
        """Somebody else gives out what was asked for: known to be counted only inside of `over`."""
        self._is_counted = self._is_counted and self._is_over

    def _gave(self) -> None:
        """A batch was given out and counted."""
        self._is_counted = True
        if not self._is_over:  # workers that begin late begin where `over` did
            self._tell()
        if self._shared is not None:
            self._shared.counted()

    def _moved(self) -> None:
        """It was sent elsewhere."""
        self._is_counted = True
        self._moves += 1
        self._tell()
        if self._shared is not None:
            self._shared.counted()

    def _check_counted(self) -> None:
        self._is_counted = self._is_counted and (self._shared is None or self._shared.is_counted)
        if not self._is_counted:
            raise InvalidInput(
                "which batches were consumed is not known, since a DataLoader asks for them ahead: iterate over "
                f"{self._name}.over(data_loader) instead of the DataLoader itself"
            )

    def _share_out(self) -> None:
        """Copies of it will be made, in workers."""
        from strata.data.workers import Shared

        if self._shared is None:
            self._shared = Shared(*self._where())

    def _begun_in_worker(self) -> tuple[int, ...]:
        """In a worker's copy: where the iteration that begins now does."""
        assert self._shared is not None, "only a dataset goes to workers"
        return self._shared.begun(self._where())

    @property
    def _is_over(self) -> bool:
        """Whether it is iterated by `over` now."""
        return self._over == self._moves

    def _begun(self, data_loader: Iterable[T]) -> Iterator[T]:
        return iter(data_loader) if self._shared is None else self._shared.begin(partial(iter, data_loader))

    def _tell(self) -> None:
        if self._shared is not None:
            self._shared.tell(*self._where())


def check_order(data_loader: object) -> None:
    """InvalidInput if it is a DataLoader that puts batches together, or gives them in another order than it asked."""
    if not isinstance(data_loader, Iterable):
        raise InvalidInput(f"data_loader must be a DataLoader, not {type(data_loader).__name__}")
    if getattr(data_loader, "batch_size", None) is not None:
        raise InvalidInput("the DataLoader makes batches of batches: give it batch_size=None")
    if not getattr(data_loader, "in_order", True):
        raise InvalidInput(
            "the DataLoader gives batches in the order in which they are ready, which is another one each time: leave "
            "in_order at True"
        )
