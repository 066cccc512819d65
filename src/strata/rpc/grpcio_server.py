"""The same services on grpcio's own server: the peer in benchmarks, and a second opinion on what gRPC means.

It takes the same tables and interceptors as `Server`. Of `Limits` it knows streams, message and header sizes, and
keepalive; the rest is grpcio's own business.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc

from strata.errors import InvalidInput, StrataError
from strata.rpc.addresses import join_address, split_address
from strata.rpc.answers import unknown
from strata.rpc.head import Head
from strata.rpc.later import Later
from strata.rpc.limits import Limits, checked_limits
from strata.rpc.server import ServerTls
from strata.rpc.service import Admission, Call, Interceptor, Method, logger, tell_all
from strata.rpc.status import RpcError, Status
from strata.rpc.talks import Talk, hang_up

UNWRITTEN_MOST = 1024
"""What a talk may say to one who does not read, beyond what grpcio keeps."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """Stands in for `Server`, method by method."""

    def __init__(
        self,
        services: Iterable[Iterable[Method]],
        *,
        interceptors: Iterable[Interceptor] = (),
        limits: Limits | None = None,
        gzip_from_bytes: int | None = None,
    ) -> None:
        self.limits = checked_limits(limits, gzip_from_bytes)
        self._admission = Admission(services, interceptors)
        self._server = grpc.aio.server(
            handlers=[_Handlers(self._admission)],
            options=_options(self.limits),
            compression=None if gzip_from_bytes is None else grpc.Compression.Gzip,
        )
        self._started = False

    async def listen(self, address: str, *, tls: ServerTls | None = None) -> str:
        """Once: grpcio takes no further address when it serves."""
        if self._started:
            raise StrataError("grpcio's server has been used already, and takes one address")
        if address.startswith("unix:"):
            if not address[5:]:
                raise InvalidInput("unix: needs the path of a socket behind it")
        else:
            split_address(address)
        try:
            port = self._bind(address, tls)
        except RuntimeError as error:
            raise StrataError(f"cannot listen on {address}: {error}") from error
        await self._server.start()
        self._started = True
        return address if address.startswith("unix:") else join_address(split_address(address)[0], port)

    def _bind(self, address: str, tls: ServerTls | None) -> int:
        if tls is None:
            return int(self._server.add_insecure_port(address))
        return int(self._server.add_secure_port(address, _credentials(tls)))

    def forget_callers(self) -> None:
        """It asks in every call anyway."""

    async def stop(self, grace_seconds: float = 5.0) -> None:
        await self._server.stop(grace_seconds)


def _options(limits: Limits) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.max_metadata_size", limits.header_list_bytes),
        ("grpc.absolute_max_metadata_size", limits.header_list_bytes),
        ("grpc.keepalive_time_ms", int(limits.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_seconds * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", int(limits.rate_seconds * 1000 / limits.pings)),
        ("grpc.so_reuseport", 0),
    ]


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    tls.context()  # says in words what is wrong with the files
    try:
        key, certificate = Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes()
        client_ca = None if tls.client_ca is None else Path(tls.client_ca).read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([(key, certificate)], client_ca, client_ca is not None)


class _GrpcioCall(Call):
    headed = False

    def __init__(self, head: Head, context: Any) -> None:
        self.head = head
        self._context = context
        left = context.time_remaining()
        self.deadline = None if left is None else time.monotonic() + left

    @property
    def peer(self) -> str:
        said: str = self._context.peer()
        return "unix" if said.startswith("unix") else said.partition(":")[2].replace("%5B", "[").replace("%5D", "]")

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] = self._context.auth_context()
        names = [name.decode() for name in found.get("x509_common_name", ())]
        return {"subject": tuple((("commonName", name),) for name in names)} if names else None


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def service(self, details: Any) -> Any:
        head = Head(details.method, tuple((name, value) for name, value in details.invocation_metadata or ()))
        self._admission.admit(head)
        run = _Run(head, self._admission)
        if head.refusal is not None:
            return grpc.stream_unary_rpc_method_handler(run.refuse)  # without waiting for a request
        method: Method = head.method
        requests, responses = method.kind.value
        if method.talks:
            return grpc.stream_stream_rpc_method_handler(run.talk)
        if responses:
            make = grpc.stream_stream_rpc_method_handler if requests else grpc.unary_stream_rpc_method_handler
            return make(run.stream)
        make = grpc.stream_unary_rpc_method_handler if requests else grpc.unary_unary_rpc_method_handler
        return make(run.single)


class _Run:
    """One call, with grpcio's own context."""

    def __init__(self, head: Head, admission: Admission) -> None:
        self._head = head
        self._ended = admission.ended
        self._began = time.monotonic()

    async def refuse(self, requests: Any, context: Any) -> None:
        assert isinstance(self._head.refusal, RpcError)
        path = "" if self._head.method is None else self._head.path
        await self._abort(self._head.refusal, context, (), path)

    async def single(self, request: Any, context: Any) -> bytes:
        async def answer(call: _GrpcioCall, method: Method) -> bytes:
            given = _requests(request, method) if method.kind.many_requests else method.read(request)
            response = method.handler(given, call)
            if isinstance(response, Awaitable):
                response = await response
            payload = method.write(response)
            await _send_initial(call, context)
            return payload

        payload: bytes = await self._guarded(answer, context)
        return payload

    async def stream(self, request: Any, context: Any) -> None:
        async def answer(call: _GrpcioCall, method: Method) -> None:
            given = _requests(request, method) if method.kind.many_requests else method.read(request)
            async with aclosing(method.handler(given, call)) as responses:
                async for response in responses:
                    await _send_initial(call, context)
                    await context.write(method.write(response))
            await _send_initial(call, context)

        await self._guarded(answer, context)

    async def talk(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async def answer(call: _GrpcioCall, method: Method) -> None:
            line = _Line()
            talk = method.talk(line, call)
            hearing = asyncio.ensure_future(_hear(requests, method, talk, line))
            try:
                async for response in line:
                    await _send_initial(call, context)
                    await context.write(method.write(response))
                await _send_initial(call, context)
            finally:
                hearing.cancel()
                hang_up(talk, method.path)

        await self._guarded(answer, context)

    async def _guarded(self, answer: Callable[[_GrpcioCall, Method], Awaitable[Any]], context: Any) -> Any:
        method: Method = self._head.method
        call = _GrpcioCall(self._head, context)
        try:
            payload = await answer(call, method)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling() and not context.cancelled():
                gave_up = RpcError(Status.CANCELLED, "the server gave the call up")
                await self._abort(gave_up, context, call.trailing_metadata, method.path)
            late = call.deadline is not None and call.deadline <= time.monotonic() + 1e-3
            self._tell(method.path, Status.DEADLINE_EXCEEDED if late else Status.CANCELLED)
            raise
        except RpcError as error:
            await self._abort(error, context, call.trailing_metadata, method.path)
        except Exception as error:  # noqa: BLE001  told to the client, and logged
            logger.exception("the handler of %s failed", method.path)
            await self._abort(unknown(error), context, call.trailing_metadata, method.path)
        else:
            context.set_trailing_metadata(call.trailing_metadata)
            self._tell(method.path, Status.OK)
            return payload

    async def _abort(self, error: RpcError, context: Any, metadata: Any, path: str) -> None:
        self._tell(path, error.status)
        trailing = [*error.metadata, *metadata]
        if error.details:
            trailing.append(("grpc-status-details-bin", error.details))
        await context.abort(_CODES[int(error.status)], error.message, tuple(trailing))

    def _tell(self, path: str, status: Status) -> None:
        tell_all(self._ended, path, status, time.monotonic() - self._began)


class _Line:
    """What a talk says, one after the other."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[tuple[Any, BaseException | None, bool]] = asyncio.Queue()
        self._ended = False

    def say(self, response: Any) -> None:
        if self._said.qsize() >= UNWRITTEN_MOST:
            self.end(RpcError(Status.RESOURCE_EXHAUSTED, "too many answers wait for the client to read them"))
        elif not self._ended:
            self._said.put_nowait((response, None, False))

    def end(self, error: BaseException | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._said.put_nowait((None, error, True))

    async def written(self) -> None:
        """All that was said."""
        await self._said.join()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            response, error, is_end = await self._said.get()
            if error is not None:
                raise error
            if is_end:
                return
            yield response
            self._said.task_done()


async def _hear(requests: AsyncIterator[bytes], method: Method, talk: Talk, line: _Line) -> None:
    """Each is answered, and the answer written, before the next is taken."""
    try:
        async for message in requests:
            response = talk.heard(method.read(message))
            if isinstance(response, Later):
                await _answered(response, line)
            elif response is not None:
                line.say(response)
            await line.written()
        line.end()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        line.end(error)
    except Exception as error:  # noqa: BLE001  raised where the call is answered
        line.end(error)


async def _answered(later: Later, line: _Line) -> None:
    """Said in the moment it is there: whatever is said after that comes behind it."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(response: Any, error: BaseException | None) -> None:
        if told.done():
            return
        if error is not None:
            line.end(error)
        elif response is not None:
            line.say(response)
        told.set_result(None)

    later.then(tell)
    try:
        await told
    finally:
        later.given_up = told.cancelled()


async def _send_initial(call: _GrpcioCall, context: Any) -> None:
    """In front of the first response; later it is too late."""
    if not call.headed:
        call.headed = True
        if call.initial_metadata:
            await context.send_initial_metadata(call.initial_metadata)


async def _requests(messages: AsyncIterator[bytes], method: Method) -> AsyncIterator[Any]:
    async for message in messages:
        yield method.read(message)
