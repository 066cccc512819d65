"""Errors on their way between a coordinator and its callers: a gRPC status, with the details that a program needs.

The details are a `google.rpc.ErrorInfo` (in a `google.rpc.Status`, as every gRPC tool expects), whose `reason` names
the class of the error and whose `metadata` holds what that class carries.
"""

import json

from google.protobuf.any_pb2 import Any

from strata.errors import (
    BarrierFailed,
    Conflict,
    Expired,
    InvalidInput,
    NotFound,
    NotRegistered,
    Refused,
    StaleGeneration,
    StrataError,
    Superseded,
)
from strata.rpc.status import RpcError, Status
from strata.texts import printable

DOMAIN = "strata"
MISSING_SENT = 16
"""Names of those who are missing from a barrier: a header has an end."""
NAME_CHARS = 160
MESSAGE_CHARS = 2000

_STATUS: dict[type[StrataError], Status] = {
    InvalidInput: Status.INVALID_ARGUMENT,
    NotFound: Status.NOT_FOUND,
    NotRegistered: Status.NOT_FOUND,
    Conflict: Status.ALREADY_EXISTS,
    Refused: Status.FAILED_PRECONDITION,
    Superseded: Status.FAILED_PRECONDITION,
    Expired: Status.FAILED_PRECONDITION,
    StaleGeneration: Status.ABORTED,
    BarrierFailed: Status.ABORTED,
}
_KINDS: dict[str, type[StrataError]] = {kind.code.upper(): kind for kind in _STATUS}


def to_rpc(error: StrataError) -> RpcError:
    """The error as a caller will get it."""
    if isinstance(error, RpcError):
        return error
    status = _STATUS.get(type(error), Status.INTERNAL)
    if isinstance(error, Refused) and error.retry:
        status = Status.ABORTED
    metadata = {"retry": "true"} if error.retry else {}
    if isinstance(error, StaleGeneration):
        metadata["generation"] = str(error.generation)
    if isinstance(error, BarrierFailed):
        metadata["missing"] = json.dumps([name[:NAME_CHARS] for name in error.missing[:MISSING_SENT]])
    message = message_of(error)[:MESSAGE_CHARS]
    return RpcError(status, message, details=_details(status, message, error.code.upper(), metadata))


def _details(status: Status, message: str, reason: str, metadata: dict[str, str]) -> bytes:
    from google.rpc.error_details_pb2 import ErrorInfo
    from google.rpc.status_pb2 import Status as Details

    details = Details(code=int(status), message=message)
    packed = Any()
    packed.Pack(ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata))
    details.details.append(packed)
    made: bytes = details.SerializeToString()
    return made


def message_of(error: StrataError) -> str:
    """Its words on one line: they may quote what a worker said."""
    return printable(str(error))


def reason_of(error: StrataError) -> str:
    """The name under which the error travels."""
    return error.code.upper()


def from_rpc(error: RpcError) -> StrataError:
    """What the coordinator raised; the error itself if it was raised by nothing of Strata's."""
    reason, metadata = _info(error.details)
    kind, message = _KINDS.get(reason), printable(error.message)
    if kind is StaleGeneration:
        return StaleGeneration(message, generation=int(metadata.get("generation", "0")))
    if kind is BarrierFailed:
        return BarrierFailed(message, missing=json.loads(metadata.get("missing", "[]")))
    if kind is Refused:
        return Refused(message, retry=metadata.get("retry") == "true")
    return error if kind is None else kind(message)


def _info(details: bytes) -> tuple[str, dict[str, str]]:
    """The reason and what goes with it; an empty reason where there is none of Strata's."""
    if not details:
        return "", {}
    from google.rpc.error_details_pb2 import ErrorInfo
    from google.rpc.status_pb2 import Status as Details

    for packed in Details.FromString(details).details:
        info = ErrorInfo()
        if packed.Unpack(info) and info.domain == DOMAIN:
            return str(info.reason), dict(info.metadata)
    return "", {}
