"""Tables of methods: what belongs in one, and what is told before anything is served."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from strata.errors import InvalidInput
from strata.rpc import Call, Interceptor, Kind, Method, RpcError, Status, protobuf_service
from strata.rpc.head import Head
from strata.rpc.service import Admission

DESCRIPTOR = health_pb2.DESCRIPTOR.services_by_name["Health"]


def echo(request: bytes, call: Call) -> bytes:
    return request


async def later(request: bytes, call: Call) -> bytes:
    return request


async def many(request: bytes, call: Call) -> AsyncIterator[bytes]:
    yield request


class Health:
    def check(self, request: Any, call: Call) -> Any:
        return health_pb2.HealthCheckResponse(status=1)

    def list(self, request: Any, call: Call) -> bytes:
        return b""

    async def watch(self, request: Any, call: Call) -> AsyncIterator[Any]:
        yield health_pb2.HealthCheckResponse(status=1)


def test_a_protobuf_service_is_a_table() -> None:
    methods = {method.path.rpartition("/")[2]: method for method in protobuf_service(DESCRIPTOR, Health())}
    assert list(methods) == [method.name for method in DESCRIPTOR.methods]  # older definitions have no List
    check, watch = methods["Check"], methods["Watch"]
    assert (check.kind, watch.kind) == (Kind.UNARY, Kind.SERVER_STREAM)
    request = check.read(health_pb2.HealthCheckRequest(service="x").SerializeToString())
    assert request.service == "x"
    assert check.write(check.handler(request, None)) == b"\x08\x01"
    for each in methods.keys() - {"Check", "Watch"}:
        assert methods[each].write(methods[each].handler(request, None)) == b""


def test_a_method_without_a_handler_is_told() -> None:
    with pytest.raises(InvalidInput, match="object has no method 'check' to handle Check"):
        protobuf_service(DESCRIPTOR, object())


@pytest.mark.parametrize(
    ("handler", "kind"),
    [(echo, Kind.SERVER_STREAM), (later, Kind.BOTH_STREAM), (echo, Kind.CLIENT_STREAM), (many, Kind.CLIENT_STREAM)],
)
def test_a_handler_that_cannot_do_its_kind_is_told(handler: Any, kind: Kind) -> None:
    with pytest.raises(InvalidInput, match=r"the handler of /a\.B/C"):
        Method("/a.B/C", handler, kind)


@pytest.mark.parametrize("path", ["", "a.B/C", "/a.B", "/a.B/C/D", "/a b/C", "/a.B/"])
def test_a_path_that_is_none_is_told(path: str) -> None:
    with pytest.raises(InvalidInput, match="no path of a method"):
        Method(path, echo)


def test_a_path_is_there_once() -> None:
    with pytest.raises(InvalidInput, match="is there twice"):
        Admission([[Method("/a.B/C", echo)], [Method("/a.B/C", later)]], [])


def test_what_is_no_method_is_told() -> None:
    for wrong in ({"kind": "unary"}, {"handler": None}, {"decode": None}):
        with pytest.raises(InvalidInput, match=r"/a\.B/C must be"):
            Method(**{"path": "/a.B/C", "handler": echo, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"kind=Kind\.SERVER_STREAM"):
        Method("/a.B/C", many)
    with pytest.raises(InvalidInput, match="put the methods of a service in a list"):
        Admission([Method("/a.B/C", echo)], [])  # type: ignore[list-item]


class AwaitsTooMuch(Interceptor):
    async def authenticate(self, head: Head) -> object:
        raise RpcError(Status.UNAUTHENTICATED)


class GivesNothing(Interceptor):
    def around(self, method: Method) -> Any:
        return None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (AwaitsTooMuch(), "authenticate must not be async"),
        (GivesNothing(), "around must give a Method"),
        (AwaitsTooMuch, "must be an instance"),
    ],
)
def test_an_interceptor_that_would_let_everybody_in_is_told(wrong: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Admission([[Method("/a.B/C", echo)]], [wrong])


def test_a_response_that_is_none_is_told() -> None:
    with pytest.raises(TypeError, match="gave NoneType"):
        Method("/a.B/C", echo).write(None)
