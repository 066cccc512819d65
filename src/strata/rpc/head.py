"""The head of a call: what its header block says, checked against HTTP/2 and gRPC. Pure; one pass over the fields."""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any

from strata.rpc.status import Metadata, RpcError, Status

GZIP, IDENTITY = "gzip", "identity"
VALUES = 64
"""Of binary metadata, which a peer may join with commas: a few bytes would stand for thousands of them."""

_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_CONNECTION_ONLY = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_OURS = {b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"}
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+\Z")
_BAD_VALUE = re.compile(rb"[\0\r\n]|\A[ \t]|[ \t]\Z")
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])\Z")
_UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Malformed(Exception):
    """The fields break HTTP/2's own rules: the stream ends with PROTOCOL_ERROR."""


class HttpRefusal(Exception):
    """Not a gRPC call, and answered in HTTP's own words: a status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Head:
    """Shared by all calls whose header block is the same, so nobody may change it once the server let it in.

    `method` and `identity` are the server's: what it found under the path, and whom it took the caller for. `refusal`
    is set where there is nothing to find.
    """

    __slots__ = (
        "accepts_gzip",
        "authority",
        "content_length",
        "encoding",
        "identity",
        "metadata",
        "method",
        "path",
        "refusal",
        "timeout_seconds",
    )

    def __init__(self, path: str, metadata: Metadata = (), authority: str = "") -> None:
        self.path = path
        self.metadata = metadata
        self.authority = authority
        self.timeout_seconds: float | None = None
        self.encoding = IDENTITY
        self.accepts_gzip = False
        self.content_length: int | None = None
        self.method: Any = None
        self.identity: object = None
        self.refusal: RpcError | HttpRefusal | None = None

    def value(self, name: str) -> str | bytes | None:
        """The first value under the name."""
        return next((value for own, value in self.metadata if own == name), None)


def read_head(fields: Iterable[tuple[bytes, bytes]]) -> Head:
    """Raises `Malformed`. What gRPC alone does not like is in `refusal`."""
    pseudo: dict[bytes, bytes] = {}
    own: dict[bytes, bytes] = {}
    others: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if name.startswith(b":"):
            _check_pseudo(name, value, pseudo, late=bool(own or others))
            pseudo[name] = value
            continue
        check_field(name, value)
        if name in _OURS:
            if own.setdefault(name, value) != value and name == b"content-length":
                raise Malformed("content-length is said twice, and differs")
        else:
            others.append((name, value))
    missing = {b":method", b":scheme", b":path"} - pseudo.keys()
    if missing or not pseudo[b":path"]:
        raise Malformed(f"the request has no {', '.join(sorted(name.decode() for name in missing)) or ':path'}")
    head = Head(pseudo[b":path"].decode("latin-1"), (), pseudo.get(b":authority", b"").decode("latin-1"))
    head.content_length = _content_length(own)
    head.refusal = _not_grpc(pseudo, own)
    if head.refusal is None:
        try:
            _read_grpc(head, own, others)
        except RpcError as error:
            head.refusal = error
    return head


def check_trailers(fields: Iterable[tuple[bytes, bytes]]) -> None:
    """Those that end a request mean nothing in gRPC, but must be sound."""
    for name, value in fields:
        if name.startswith(b":"):
            raise Malformed(f"{_shown(name)} in trailers")
        check_field(name, value)


def check_field(name: bytes, value: bytes) -> None:
    if not _NAME.match(name):
        raise Malformed(f"{_shown(name)} is no name of a header")
    if _BAD_VALUE.search(value):
        raise Malformed(f"the value of {_shown(name)} has characters that no header may have")
    if name in _CONNECTION_ONLY or (name == b"te" and value != b"trailers"):
        raise Malformed(f"{_shown(name)} has no place in HTTP/2")


def _check_pseudo(name: bytes, value: bytes, found: dict[bytes, bytes], *, late: bool) -> None:
    if name not in _PSEUDO or name in found or late or _BAD_VALUE.search(value):
        raise Malformed(f"{_shown(name)} is unknown, doubled, late or has characters that no header may have")


def _content_length(own: dict[bytes, bytes]) -> int | None:
    said = own.get(b"content-length")
    if said is None:
        return None
    if not said.isdigit() or len(said) > 15:
        raise Malformed("content-length is no number")
    return int(said)


def _not_grpc(pseudo: dict[bytes, bytes], own: dict[bytes, bytes]) -> HttpRefusal | None:
    if pseudo[b":method"] != b"POST":
        return HttpRefusal(405, "gRPC calls are POST requests")
    kind = own.get(b"content-type", b"")
    if kind != b"application/grpc" and not kind.startswith((b"application/grpc+", b"application/grpc;")):
        return HttpRefusal(415, "this is a gRPC server: content-type must be application/grpc")
    return None


def _read_grpc(head: Head, own: dict[bytes, bytes], others: list[tuple[bytes, bytes]]) -> None:
    head.encoding = own.get(b"grpc-encoding", b"identity").decode("latin-1")
    if head.encoding not in (IDENTITY, GZIP):
        raise RpcError(
            Status.UNIMPLEMENTED,
            f"messages compressed with {head.encoding!r} are not understood here: use identity or gzip",
            metadata=(("grpc-accept-encoding", "identity,gzip"),),
        )
    head.accepts_gzip = b"gzip" in own.get(b"grpc-accept-encoding", b"").replace(b" ", b"").split(b",")
    if (said := own.get(b"grpc-timeout")) is not None:
        head.timeout_seconds = read_timeout(said)
    if sum(value.count(b",") for name, value in others if name.endswith(b"-bin")) > VALUES:
        raise RpcError(Status.RESOURCE_EXHAUSTED, f"more than {VALUES} values of binary metadata")
    head.metadata = tuple(pair for name, value in others for pair in _metadata(name, value))


def read_timeout(said: bytes) -> float:
    hit = _TIMEOUT.match(said)
    if hit is None:
        raise RpcError(Status.INTERNAL, f"grpc-timeout {_shown(said)} is not up to 8 digits and one of H M S m u n")
    return int(hit[1]) * _UNIT_SECONDS[hit[2]]


def _metadata(name: bytes, value: bytes) -> Iterable[tuple[str, str | bytes]]:
    if not name.endswith(b"-bin"):
        return [(name.decode("ascii"), value.decode("latin-1"))]
    return [(name.decode("ascii"), _unbase64(name, one)) for one in value.split(b",")]


def _unbase64(name: bytes, value: bytes) -> bytes:
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise RpcError(Status.INTERNAL, f"the value of {_shown(name)} is not base64") from None


def _shown(text: bytes) -> str:
    return repr(text[:64].decode("latin-1"))
