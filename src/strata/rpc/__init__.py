"""gRPC on the wire: a small server of our own, the same on grpcio's, and a client. It knows nothing of coordinators.

Each name is imported from its home on first use: a client needs none of what a server does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "BlockingChannel",
    "Call",
    "Channel",
    "ChannelOptions",
    "ClientTls",
    "GrpcioServer",
    "Interceptor",
    "Kind",
    "Later",
    "Limits",
    "Line",
    "Metadata",
    "Method",
    "Remote",
    "RpcError",
    "Server",
    "ServerTls",
    "Status",
    "Talk",
    "protobuf_service",
    "talking",
]

_HOMES = {
    "BlockingChannel": "client",
    "Call": "service",
    "Channel": "client",
    "ChannelOptions": "client",
    "ClientTls": "client",
    "GrpcioServer": "grpcio_server",
    "Interceptor": "service",
    "Kind": "service",
    "Later": "later",
    "Limits": "limits",
    "Line": "talks",
    "Metadata": "status",
    "Method": "service",
    "Remote": "client",
    "RpcError": "status",
    "Server": "server",
    "ServerTls": "server",
    "Status": "status",
    "Talk": "talks",
    "protobuf_service": "service",
    "talking": "talks",
}

if TYPE_CHECKING:
    from strata.rpc.client import BlockingChannel, Channel, ChannelOptions, ClientTls, Remote
    from strata.rpc.grpcio_server import GrpcioServer
    from strata.rpc.later import Later
    from strata.rpc.limits import Limits
    from strata.rpc.server import Server, ServerTls
    from strata.rpc.service import Call, Interceptor, Kind, Method, protobuf_service
    from strata.rpc.status import Metadata, RpcError, Status
    from strata.rpc.talks import Line, Talk, talking


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
