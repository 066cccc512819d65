"""The ends of calls, as header blocks: heads, trailers, and refusals in gRPC's words or HTTP's."""

from strata.rpc.fields import write_fields
from strata.rpc.head import HttpRefusal
from strata.rpc.status import Metadata, RpcError, Status, encode_message
from strata.rpc.usual import OK_HEAD, OK_TRAILERS

GZIP_HEAD = OK_HEAD + write_fields([("grpc-encoding", "gzip")])


def head_block(metadata: Metadata, *, compressed: bool) -> bytes:
    """Before the first message."""
    return (GZIP_HEAD if compressed else OK_HEAD) + write_fields(metadata)


def trailers_block(error: RpcError | None, metadata: Metadata, *, alone: bool) -> bytes:
    """After the last message; `alone`, they are the whole answer and begin as one."""
    start = OK_HEAD if alone else b""
    if error is None:
        return start + OK_TRAILERS + write_fields(metadata)
    fields: list[tuple[str, str | bytes]] = [("grpc-status", str(int(error.status)))]
    if error.message:
        fields.append(("grpc-message", encode_message(error.message)))
    if error.details:
        fields.append(("grpc-status-details-bin", error.details))
    return start + write_fields([*fields, *error.metadata, *metadata])


def http_block(refusal: HttpRefusal) -> bytes:
    """For who did not speak gRPC: no body, since that would need room in its windows."""
    return write_fields([(":status", str(refusal.status)), ("x-reason", refusal.why)])


def unknown(error: BaseException) -> RpcError:
    """What a client is told of a handler that broke: that it did. The rest is in the server's log."""
    return RpcError(Status.UNKNOWN, f"the server failed to answer ({type(error).__name__}): see its log")
