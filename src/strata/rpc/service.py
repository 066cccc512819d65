"""What is served: tables of methods, the call that a handler sees, and what looks at calls on their way.

Nothing here knows which server carries it. A handler takes (request, call) and gives the response, or for streams takes
and gives async iterators. One that need not wait is a plain function, and is answered at once; it may also return an
awaitable when it finds that it must wait after all. Streams both ways may be talks instead: see talks.py.
"""

import inspect
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strata.errors import InvalidInput
from strata.logs import get_logger
from strata.rpc.fields import check_metadata
from strata.rpc.head import Head
from strata.rpc.status import Metadata, RpcError, Status
from strata.rpc.talks import Line, Talk

logger = get_logger("strata.rpc")


class Kind(Enum):
    """Who sends many messages."""

    UNARY = (False, False)
    CLIENT_STREAM = (True, False)
    SERVER_STREAM = (False, True)
    BOTH_STREAM = (True, True)

    @property
    def many_requests(self) -> bool:
        return self.value[0]

    @property
    def many_responses(self) -> bool:
        return self.value[1]


def _as_it_is(message: bytes) -> bytes:
    return message


@dataclass(frozen=True, slots=True)
class Method:
    """One method under its path, `/package.Service/Method`. `encode` is not asked where a handler gives bytes."""

    path: str
    handler: Callable[..., Any]
    kind: Kind = Kind.UNARY
    decode: Callable[[bytes], Any] = _as_it_is
    encode: Callable[[Any], bytes] = _as_it_is
    is_unary: bool = field(init=False)
    """Looked at in every call, and an Enum is slow to ask."""
    talks: bool = field(init=False)
    """Whether the handler gives a Talk."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"/[A-Za-z0-9_.]+/[A-Za-z0-9_]+", self.path):
            raise InvalidInput(f"{self.path!r} is no path of a method: it looks like /package.Service/Method")
        if not isinstance(self.kind, Kind):
            raise InvalidInput(f"the kind of {self.path} must be a Kind, not {self.kind!r}")
        if not all(map(callable, (self.handler, self.decode, self.encode))):
            raise InvalidInput(f"the handler, decode and encode of {self.path} must be functions")
        handler = inspect.unwrap(self.handler)
        object.__setattr__(self, "talks", getattr(handler, "talks", False))
        if self.talks and self.kind is not Kind.BOTH_STREAM:
            raise InvalidInput(f"the handler of {self.path} talks: say kind=Kind.BOTH_STREAM")
        if not self.kind.many_responses and inspect.isasyncgenfunction(handler):
            raise InvalidInput(
                f"the handler of {self.path} yields many responses: say kind=Kind.SERVER_STREAM or BOTH_STREAM"
            )
        if self.kind.many_responses and not self.talks and not inspect.isasyncgenfunction(handler):
            raise InvalidInput(f"the handler of {self.path} must be an async generator: async def ... yield")
        if self.kind is Kind.CLIENT_STREAM and not inspect.iscoroutinefunction(handler):
            raise InvalidInput(f"the handler of {self.path} must be async def: it has to wait for requests")
        object.__setattr__(self, "is_unary", self.kind is Kind.UNARY)

    def read(self, message: bytes) -> Any:
        try:
            return self.decode(message)
        except RpcError:
            raise
        except Exception as error:
            raise RpcError(Status.INTERNAL, f"the request to {self.path} cannot be decoded ({error})") from error

    def talk(self, line: Line, call: "Call") -> Talk:
        """Begin one; for a method that talks."""
        talk = self.handler(line, call)
        if not isinstance(talk, Talk):
            raise TypeError(f"the handler of {self.path} gave {type(talk).__name__}, which is no Talk")
        return talk

    def write(self, response: Any) -> bytes:
        made = response if type(response) is bytes else self.encode(response)
        if type(made) is not bytes:
            raise TypeError(f"the handler of {self.path} gave {type(response).__name__}, which is no response")
        return made


def table(services: Iterable[Iterable[Method]]) -> dict[str, Method]:
    """All methods by their path."""
    methods: dict[str, Method] = {}
    for service in services:
        if isinstance(service, Method):
            raise InvalidInput(f"{service.path} is a method, not a service: put the methods of a service in a list")
        for method in service:
            if method.path in methods:
                raise InvalidInput(f"{method.path} is there twice")
            methods[method.path] = method
    return methods


def protobuf_service(descriptor: Any, implementation: object) -> list[Method]:
    """The methods of a protobuf service, each handled by the method of the same name in snake case.

    `descriptor` is as in `messages_pb2.DESCRIPTOR.services_by_name["Service"]`.
    """
    from google.protobuf.message_factory import GetMessageClass

    return [
        Method(
            f"/{descriptor.full_name}/{method.name}",
            _handler(implementation, method.name),
            Kind((method.client_streaming, method.server_streaming)),
            GetMessageClass(method.input_type).FromString,
            _serialise,
        )
        for method in descriptor.methods
    ]


def _handler(implementation: object, method: str) -> Callable[..., Any]:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", method).lower()
    found: Callable[..., Any] | None = getattr(implementation, name, None)
    if found is None:
        raise InvalidInput(f"{type(implementation).__name__} has no method {name!r} to handle {method}")
    return found


def _serialise(message: Any) -> bytes:
    made: bytes = message.SerializeToString()
    return made


class Call(ABC):
    """What a handler may know of its call, and say beside its responses. Cancellation reaches an async handler as
    `asyncio.CancelledError`: the client went away, or the deadline passed."""

    head: Head
    deadline: float | None = None
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()

    @property
    def metadata(self) -> Metadata:
        """What the client sent along."""
        return self.head.metadata

    @property
    def identity(self) -> object:
        """Whom an interceptor took the caller for."""
        return self.head.identity

    @property
    @abstractmethod
    def peer(self) -> str:
        """Where the client is, in words."""

    @property
    @abstractmethod
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """What the client proved itself with, as the ssl module tells it; None without mutual TLS. On grpcio's server
        it is the common name alone."""

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up; None if it never does."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def set_initial_metadata(self, *pairs: tuple[str, str | bytes]) -> None:
        """To be sent before the first response."""
        check_metadata(pairs)
        self.initial_metadata = pairs

    def set_trailing_metadata(self, *pairs: tuple[str, str | bytes]) -> None:
        """To be sent with the status."""
        check_metadata(pairs)
        self.trailing_metadata = pairs


class Interceptor:
    """Looks at calls on their way. Override what is needed; what is not costs nothing."""

    def authenticate(self, head: Head) -> object:
        """Who calls. Raise RpcError to refuse; whatever is returned lets the caller in.

        Asked once for each header block that looks different, not in each call: the answer may depend on the head
        alone, and `Server.forget_callers` is to be called when it changes.
        """
        return None

    def around(self, method: Method) -> Method:
        """The method with its handler wrapped, such as by a trace. Asked once, when the server is made."""
        return method

    def ended(self, path: str, status: Status, seconds: float) -> None:
        """A call is over. `path` is empty for a caller that was refused and for what is not served here: such a name is
        the caller's invention."""


class Admission:
    """The table of methods and those who watch it: what each server asks about a head."""

    def __init__(self, services: Iterable[Iterable[Method]], interceptors: Iterable[Interceptor]) -> None:
        interceptors = list(interceptors)
        for interceptor in interceptors:
            _check_interceptor(interceptor)
        self.methods = table(services)
        for interceptor in reversed(interceptors):
            self.methods = {path: _wrapped(interceptor, method) for path, method in self.methods.items()}
        self._authenticate = [own for one in interceptors if (own := _overridden(one, "authenticate"))]
        self.ended = [own for one in interceptors if (own := _overridden(one, "ended"))]

    def admit(self, head: Head) -> None:
        """Who calls comes first: a stranger is not told what there is."""
        try:
            for authenticate in self._authenticate:
                head.identity = authenticate(head) or head.identity
            head.method = self.methods.get(head.path)
            if head.method is None:
                raise RpcError(Status.UNIMPLEMENTED, f"there is no {head.path[:256]} here")
        except RpcError as error:
            head.refusal = error
        except Exception:
            logger.exception("an interceptor failed to tell who calls %s", head.path[:256])
            head.refusal = RpcError(Status.INTERNAL, "the caller could not be authenticated: see the server's log")


def _check_interceptor(interceptor: object) -> None:
    """An answer that has to be awaited would pass for a caller that was let in."""
    if not isinstance(interceptor, Interceptor):
        raise InvalidInput(f"an interceptor must be an instance of a subclass of Interceptor, not {interceptor!r}")
    for name in ("authenticate", "around", "ended"):
        if inspect.iscoroutinefunction(getattr(interceptor, name)):
            raise InvalidInput(f"{type(interceptor).__name__}.{name} must not be async: nobody awaits it")


def _wrapped(interceptor: Interceptor, method: Method) -> Method:
    wrapped: object = interceptor.around(method)
    if not isinstance(wrapped, Method):
        raise InvalidInput(f"{type(interceptor).__name__}.around must give a Method, not {wrapped!r}")
    return wrapped


def _overridden(interceptor: Interceptor, name: str) -> Callable[..., Any] | None:
    if getattr(type(interceptor), name) is getattr(Interceptor, name):
        return None
    own: Callable[..., Any] = getattr(interceptor, name)
    return own


def tell_all(watchers: Iterable[Callable[..., Any]], path: str, status: Status, seconds: float) -> None:
    for tell in watchers:
        try:
            tell(path, status, seconds)
        except Exception:
            logger.exception("an interceptor failed to hear that %s ended", path)
