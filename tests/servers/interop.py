"""A gRPC server for tests, in a process of its own: `python -m tests.servers.interop strata|grpcio ADDRESS`.

It serves what gRPC's interoperability tests need, with bytes for messages (JSON where a request has to say something),
on Strata's own server or on grpcio's. The first line it prints is its address.
"""

import argparse
import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from strata.rpc import Call, Interceptor, Kind, Limits, Method, RpcError, Server, ServerTls, Status
from strata.rpc.grpcio_server import GrpcioServer
from strata.rpc.head import Head
from strata.rpc.health import Health
from strata.rpc.reflection import Reflection

SERVICE = "strata.test.Interop"
TOKEN = "let-me-in"


class Watcher(Interceptor):
    """Refuses wrong tokens; those without any are let in. Counts how calls end."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()

    def authenticate(self, head: Head) -> object:
        said = head.value("authorization")
        if said is None:
            return None
        if said != f"Bearer {TOKEN}":
            raise RpcError(Status.UNAUTHENTICATED, "the token is wrong")
        return "somebody"

    def ended(self, path: str, status: Status, seconds: float) -> None:
        assert seconds >= 0
        self.ends[f"{path.rpartition('/')[2] or 'nothing'} {status.name}"] += 1


class Interop:
    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._cancelled: Counter[str] = Counter()

    def methods(self) -> list[Method]:
        def method(name: str, kind: Kind = Kind.UNARY) -> Method:
            return Method(f"/{SERVICE}/{name}", getattr(self, name.lower()), kind)

        return [
            *map(method, ("Echo", "EchoLater", "Sized", "End", "Crash", "Sleep", "Whoami", "Told")),
            method("Total", Kind.CLIENT_STREAM),
            method("Sizes", Kind.SERVER_STREAM),
            method("SleepStream", Kind.SERVER_STREAM),
            method("PingPong", Kind.BOTH_STREAM),
            method("Both", Kind.BOTH_STREAM),
        ]

    def echo(self, request: bytes, call: Call) -> bytes:
        _send_back_metadata(call)
        return request

    async def echolater(self, request: bytes, call: Call) -> bytes:
        _send_back_metadata(call)
        await asyncio.sleep(0.001)
        return request

    def sized(self, request: bytes, call: Call) -> bytes:
        """As many bytes as the request's first eight say, whatever follows them."""
        return bytes(int(request[:8]))

    def end(self, request: bytes, call: Call) -> bytes:
        asked = json.loads(request)
        if asked.get("trailing"):
            call.set_trailing_metadata(("x-end", asked["trailing"]))
        raise RpcError(
            Status(asked["status"]),
            asked.get("message", ""),
            details=asked.get("details", "").encode(),
            metadata=(("x-reason", "asked"),),
        )

    def crash(self, request: bytes, call: Call) -> bytes:
        raise ZeroDivisionError("secret words")

    async def sleep(self, request: bytes, call: Call) -> bytes:
        await self._sleep(request.decode())
        return request

    def whoami(self, request: bytes, call: Call) -> bytes:
        left = call.time_remaining()
        certificate = call.peer_certificate
        told = {
            "identity": call.identity,
            "peer": call.peer,
            "deadline": None if left is None else round(left, 1),
            "subject": None if certificate is None else dict(pair for part in certificate["subject"] for pair in part),
            "metadata": [[name, value] for name, value in call.metadata if isinstance(value, str)],
        }
        return json.dumps(told).encode()

    def told(self, request: bytes, call: Call) -> bytes:
        return json.dumps({"cancelled": self._cancelled, "ends": self._watcher.ends}).encode()

    async def total(self, requests: AsyncIterator[bytes], call: Call) -> bytes:
        total = 0
        async for request in requests:
            total += len(request)
        return str(total).encode()

    async def sizes(self, request: bytes, call: Call) -> AsyncIterator[bytes]:
        _send_back_metadata(call)
        for size in json.loads(request):
            yield bytes(size)

    async def sleepstream(self, request: bytes, call: Call) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.sleep(60)
        except (asyncio.CancelledError, GeneratorExit):  # told while it slept, or while its response went out
            self._cancelled[request.decode()] += 1
            raise

    async def pingpong(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        _send_back_metadata(call)
        async for request in requests:
            yield request

    async def both(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        """Answers before it has read: as many as the first request says, then how many came after it."""
        first = await anext(aiter(requests))
        for number in range(int(first)):
            yield str(number).encode()
        rest = 0
        async for _ in requests:
            rest += 1
        yield f"{rest} more".encode()

    async def _sleep(self, name: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self._cancelled[name] += 1
            raise


def _send_back_metadata(call: Call) -> None:
    """As the interoperability tests have it: one value in front, one behind."""
    sent = dict(call.metadata)
    if (value := sent.get("x-grpc-test-echo-initial")) is not None:
        call.set_initial_metadata(("x-grpc-test-echo-initial", value))
    if (value := sent.get("x-grpc-test-echo-trailing-bin")) is not None:
        call.set_trailing_metadata(("x-grpc-test-echo-trailing-bin", value))


async def serve(arguments: argparse.Namespace) -> None:
    watcher = Watcher()
    services = [
        Interop(watcher).methods(),
        Health([SERVICE]).methods(),
        Reflection([SERVICE, "grpc.health.v1.Health"]).methods(),
    ]
    make = Server if arguments.server == "strata" else GrpcioServer
    server = make(
        services, interceptors=[watcher], limits=Limits(**json.loads(arguments.limits)), gzip_from_bytes=arguments.gzip
    )
    tls = (
        None if arguments.certificate is None else ServerTls(arguments.certificate, arguments.key, arguments.client_ca)
    )
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(await server.listen(arguments.address, tls=tls), flush=True)
    await stopped.wait()
    await server.stop(grace_seconds=arguments.grace)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("server", choices=["strata", "grpcio"])
    parser.add_argument("address", nargs="?", default="127.0.0.1:0")
    parser.add_argument("--limits", default="{}")
    parser.add_argument("--gzip", type=int)
    parser.add_argument("--grace", type=float, default=2.0)
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--client-ca", type=Path)
    arguments = parser.parse_args()
    try:
        from uvloop import run
    except ImportError:
        asyncio.run(serve(arguments))
    else:
        run(serve(arguments))


if __name__ == "__main__":
    main()
