"""Worlds for tests: the places of one, each on a thread of its own."""

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from strata.demo.summing import Summing, listen

T = TypeVar("T")


def address_of(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return host, port


class Places:
    """So many processes, as it were: each has opened its listener, and does things on its own thread."""

    def __init__(self, count: int) -> None:
        self.listeners = [listen() for _ in range(count)]
        self.peers = [address_of(listener) for listener in self.listeners]
        self._threads = ThreadPoolExecutor(2 * count)

    def start(self, work: Callable[..., T], *each: Any) -> "Future[T]":
        return self._threads.submit(work, *each)

    def meeting(self, place: int, token: bytes | str = "world-1", **more: Any) -> "Future[Summing]":
        return self.start(lambda: Summing(place, self.peers, self.listeners[place], token, **more))

    def meet(self, token: bytes | str = "world-1", **more: Any) -> list[Summing]:
        made = [self.meeting(place, token, **more) for place in range(len(self.peers))]
        return [each.result(20) for each in made]

    def close(self) -> None:
        self._threads.shutdown()
        for listener in self.listeners:
            listener.close()


@contextmanager
def world(count: int, **more: Any) -> Iterator[tuple[Places, list[Summing]]]:
    """All have met."""
    with ExitStack() as stack:
        places = Places(count)
        stack.callback(places.close)
        met = places.meet(**more)
        for each in met:
            stack.callback(each.close)
        yield places, met


def outcome(future: "Future[Any]", seconds: float = 20) -> Any:
    """What came of it: the result, or the error."""
    error = future.exception(seconds)
    return future.result() if error is None else error


def means(places: Places, met: Sequence[Summing], given: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """What each of these gets, or what it raised, when all ask at once."""
    said = weights or [1.0] * len(met)
    asked = [places.start(each.mean, arrays, weight) for each, arrays, weight in zip(met, given, said, strict=True)]
    return [outcome(each) for each in asked]
