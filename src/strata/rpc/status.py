"""How a call ends: gRPC's status codes, the error that carries one, and messages as they travel in a header."""

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeAlias

from strata.errors import InvalidInput, StrataError

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
"""Names in lower case; values are text, or bytes where the name ends in `-bin`."""

MESSAGE_BYTES = 4096
"""Of a status message on the wire. Clients refuse header lists that are much longer."""


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(StrataError):
    """A call that ended with anything but OK: raised by handlers to end it so, and by clients that got it.

    `details` is what `grpc-status-details-bin` carries (by custom a serialised `google.rpc.Status`); `metadata` goes
    into the trailers.
    """

    def __init__(
        self,
        status: Status,
        message: str = "",
        *,
        details: bytes = b"",
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        if not isinstance(status, Status):
            raise InvalidInput(f"the status of an error must be a Status, not {status!r}")
        if status is Status.OK:
            raise InvalidInput("OK is no error: return a response instead")
        super().__init__(f"{status.name}: {message}" if message else status.name)
        self.status = status
        self.message = message
        self.details = details
        self.metadata: Metadata = tuple(metadata)
        self.code = f"rpc_{status.name.lower()}"
        self.retry = status is Status.UNAVAILABLE

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.status, self.message, self.details, self.metadata)


def _remade(status: Status, message: str, details: bytes, metadata: Metadata) -> RpcError:
    """As it was, in another process."""
    return RpcError(status, message, details=details, metadata=metadata)


def encode_message(message: str) -> bytes:
    """Percent-encoded UTF-8, and cut where it grows too long."""
    encoded = b"".join(_ENCODED[byte] for byte in message[:MESSAGE_BYTES].encode("utf-8", "replace"))
    if len(encoded) <= MESSAGE_BYTES:
        return encoded
    cut = encoded[:MESSAGE_BYTES]
    return re.sub(rb"%[0-9A-F]?\Z", b"", cut)  # not in the middle of a triple


_ENCODED = [bytes([byte]) if 0x20 <= byte <= 0x7E and byte != ord("%") else b"%%%02X" % byte for byte in range(256)]
