"""Many tries of one thing, several at once, since most of the time each of them waits."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 8


def each_of(steps: Iterable[int], attempt: Callable[[int], T]) -> list[T]:
    """What comes of it at each step; AssertionError tells all that failed."""
    failures: list[str] = []

    def one(at: int) -> T | None:
        try:
            return attempt(at)
        except Exception as error:  # noqa: BLE001  raised below, with the others
            failures.append(f"at step {at}: {type(error).__name__}: {error}")
            return None

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(one, steps))
    assert not failures, "\n".join(failures)
    return [each for each in found if each is not None]
