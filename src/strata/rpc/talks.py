"""Streams both ways that cost no task of their own: for those that are open by the thousand, and mostly silent.

    heard(request)  ──▶  its response, now or Later  ──▶  the next request is heard
    line.say(response), whenever there is something to say

The handler of such a method is marked `@talking`, takes (line, call) and gives the Talk. The call ends when the client
has sent all and was answered, when `heard` raises, or by `line.end`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from strata.logs import get_logger
from strata.rpc.status import RpcError

logger = get_logger("strata.rpc")

F = TypeVar("F", bound=Callable[..., Any])


class Line(Protocol):
    """The server's end of a stream, used on the server's loop. Once the call is over nothing is said any more, which is
    no error."""

    def say(self, response: Any) -> None:
        """One more response, behind those before."""

    def end(self, error: RpcError | None = None) -> None:
        """All is said, or this is what went wrong."""


class Talk(ABC):
    """What listens on a line."""

    __slots__ = ()

    @abstractmethod
    def heard(self, request: Any) -> Any:
        """The response, or a Later with it; None for nothing. RpcError ends the call."""

    @abstractmethod
    def over(self) -> None:
        """The call has ended, whoever ended it. Told once."""


def talking(handler: F) -> F:
    """Marks a handler that gives a Talk."""
    handler.talks = True  # type: ignore[attr-defined]
    return handler


def hang_up(talk: Talk, path: str) -> None:
    """The call is over. What breaks then changes nothing of how it ended."""
    try:
        talk.over()
    except Exception:
        logger.exception("the handler of %s failed when its call was over", path)
