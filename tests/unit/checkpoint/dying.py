"""A storage whose process dies at a call: nothing is done from then on."""

from strata.storage import StorageBackend
from strata.testing.faulty import Call, FaultyStorage, Outcome


class DyingStorage(FaultyStorage):
    """Dies at the call of this number, counted from 1 over all methods, before it is done or after."""

    def __init__(self, inner: StorageBackend, at: int, *, after: bool = False) -> None:
        super().__init__(inner)
        self._at, self._after = at, after

    @property
    def dead(self) -> bool:
        return len(self.calls) >= self._at

    def _draw(self, operation: str, path: str) -> tuple[Outcome, float]:
        number = len(self.calls) + 1
        if number < self._at:
            return "done", 0.0
        return ("after" if self._after and number == self._at else "before"), 0.0


def names(calls: list[Call]) -> list[str]:
    return [f"{call.operation} {call.path}" for call in calls]
