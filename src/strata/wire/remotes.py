"""The coordinator's methods as a client calls them. Nearly all may be repeated, and so are tried again."""

from functools import cache
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from strata.rpc import Remote
from strata.v1 import coordinator_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"]

_WITHOUT_MEMORY = ("RequestCheckpoint", "StopJob")
"""A repeat may ask for another checkpoint, or stop the world that came after."""


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


@cache
def request_for(method: str) -> Any:
    """The class of its requests."""
    return GetMessageClass(_SERVICE.methods_by_name[method].input_type)


def _serialised(message: Any) -> bytes:
    made: bytes = message.SerializeToString()
    return made
