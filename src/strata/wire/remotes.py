"""The coordinator's methods as a client calls them. Nearly all may be repeated, and so are tried again."""

from functools import cache
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from strata.errors import InvalidInput
from strata.rpc import Remote
from strata.texts import encodable
from strata.v1 import coordinator_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"]

_WITHOUT_MEMORY = ("RequestCheckpoint", "StopJob")
"""A repeat may ask for another checkpoint, or stop the world that came after."""


FREE_TEXT = {"reason", "skip"}


@cache
def remote(method: str) -> Remote[Any, Any]:
    """The method of this name, such as "Heartbeat"."""
    found = _SERVICE.methods_by_name[method]
    return Remote(
        f"/{_SERVICE.full_name}/{method}",
        _serialised,
        GetMessageClass(found.output_type).FromString,
        idempotent=not found.client_streaming and not found.server_streaming and method not in _WITHOUT_MEMORY,
    )


def request_for(method: str, **fields: Any) -> Any:
    """A request of it. What people read is sent as UTF-8 can hold it; InvalidInput for a name that is no text."""
    kind = request_type(method)
    try:
        return kind(**fields)
    except UnicodeEncodeError:
        for name in FREE_TEXT & fields.keys():
            fields[name] = encodable(fields[name])
        if "metadata" in fields:
            fields["metadata"] = {name: encodable(value) for name, value in fields["metadata"].items()}
    try:
        return kind(**fields)
    except UnicodeEncodeError as error:
        wrong = next((name for name, value in fields.items() if value == error.object), "a field")
        raise InvalidInput(f"{wrong} is not valid text: {error.object[:140]!r}") from None


@cache
def request_type(method: str) -> Any:
    """The class of its requests."""
    return GetMessageClass(_SERVICE.methods_by_name[method].input_type)


def _serialised(message: Any) -> bytes:
    made: bytes = message.SerializeToString()
    return made
