"""Foreign gRPC clients behind one small interface, so that one suite can ask them all the same."""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from strata import background
from strata.rpc.client import load
from tests.servers.interop import SERVICE

load()  # other tests of this process fork, and their children find what these clients leave

UNARY, CLIENT, SERVER, BOTH = "unary", "client", "server", "both"
NODE_MODULES = Path(sys.prefix) / "servers" / "node_modules"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True)
class Ask:
    """A call: `in_turn` sends each request after the response to the one before; `cancel_after` so many responses (0:
    after a moment)."""

    method: str
    requests: list[bytes] = field(default_factory=lambda: [b""])
    kind: str = UNARY
    timeout: float | None = 20.0
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    in_turn: bool = False
    cancel_after: int | None = None
    gzip: bool = False

    @property
    def path(self) -> str:
        return self.method if self.method.startswith("/") else f"/{SERVICE}/{self.method}"


@dataclass
class Outcome:
    responses: list[bytes]
    status: int
    message: str
    initial: dict[str, str | bytes]
    trailing: dict[str, str | bytes]


class Client(Protocol):
    def ask(self, ask: Ask) -> Outcome: ...

    def close(self) -> None: ...


class SyncClient:
    """grpcio with threads."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, UNLIMITED)

    def ask(self, ask: Ask) -> Outcome:
        requests: Any = _Turns(ask.requests) if ask.in_turn else iter(ask.requests)
        options = {
            "timeout": ask.timeout,
            "metadata": ask.metadata,
            "compression": grpc.Compression.Gzip if ask.gzip else None,
        }
        responses: list[bytes] = []
        if ask.kind in (UNARY, CLIENT):
            make = self._channel.unary_unary if ask.kind == UNARY else self._channel.stream_unary
            call = make(ask.path).future(ask.requests[0] if ask.kind == UNARY else requests, **options)
            if ask.cancel_after == 0:
                threading.Timer(0.1, call.cancel).start()
            with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError):
                responses.append(call.result())
        else:
            make = self._channel.unary_stream if ask.kind == SERVER else self._channel.stream_stream
            call = make(ask.path)(ask.requests[0] if ask.kind == SERVER else requests, **options)
            if ask.cancel_after == 0:
                threading.Timer(0.1, call.cancel).start()
            try:
                for response in call:
                    responses.append(response)
                    if ask.in_turn:
                        requests.next()
                    if len(responses) == ask.cancel_after:
                        call.cancel()
            except grpc.RpcError:
                pass
        return Outcome(
            responses,
            call.code().value[0],
            call.details() or "",
            dict(call.initial_metadata() or ()),
            dict(call.trailing_metadata() or ()),
        )

    def close(self) -> None:
        self._channel.close()


class _Turns:
    """Requests that come one by one, each when it is asked for."""

    def __init__(self, requests: list[bytes]) -> None:
        self._requests = iter(requests)
        self._turn = threading.Semaphore(1)

    def next(self) -> None:
        self._turn.release()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._turn.acquire()
        return next(self._requests)


class AioClient:
    """grpcio with asyncio."""

    def __init__(self, address: str) -> None:
        async def make() -> Any:
            return grpc.aio.insecure_channel(address, UNLIMITED)

        self._channel = background.run(make())

    def ask(self, ask: Ask) -> Outcome:
        return background.run(self._ask(ask))

    def close(self) -> None:
        background.run(self._channel.close())

    async def _ask(self, ask: Ask) -> Outcome:
        options = {
            "timeout": ask.timeout,
            "metadata": ask.metadata,
            "compression": grpc.Compression.Gzip if ask.gzip else None,
        }
        responses: list[bytes] = []
        names = {UNARY: "unary_unary", CLIENT: "stream_unary", SERVER: "unary_stream", BOTH: "stream_stream"}
        make = getattr(self._channel, names[ask.kind])(ask.path)
        call = make(ask.requests[0], **options) if ask.kind in (UNARY, SERVER) else make(**options)
        if ask.cancel_after == 0:
            asyncio.get_running_loop().call_later(0.1, call.cancel)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError, asyncio.InvalidStateError):
            await self._converse(ask, call, responses)
        return Outcome(
            responses,
            (await call.code()).value[0],
            await call.details() or "",
            dict(iter(await call.initial_metadata() or ())),
            dict(iter(await call.trailing_metadata() or ())),
        )

    async def _converse(self, ask: Ask, call: Any, responses: list[bytes]) -> None:
        if ask.kind in (CLIENT, BOTH) and not ask.in_turn:
            for request in ask.requests:
                await call.write(request)
            await call.done_writing()
        if ask.kind in (UNARY, CLIENT):
            responses.append(await call)
            return
        left = iter(ask.requests)
        if ask.in_turn:
            await call.write(next(left))
        while (response := await call.read()) is not grpc.aio.EOF:
            responses.append(response)
            if len(responses) == ask.cancel_after:
                call.cancel()
            if ask.in_turn:
                following = next(left, None)
                await (call.done_writing() if following is None else call.write(following))


class NodeClient:
    """@grpc/grpc-js, in a node of its own."""

    def __init__(self, address: str) -> None:
        script = Path(__file__).parents[2] / "servers" / "node_client.js"
        node = shutil.which("node")
        assert node is not None
        self._address = address
        self._node = subprocess.Popen(
            [node, str(script), str(NODE_MODULES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @staticmethod
    def missing() -> str | None:
        if shutil.which("node") is None or not (NODE_MODULES / "@grpc" / "grpc-js").exists():
            return "node and @grpc/grpc-js (make test sets it up where there is npm)"
        return None

    def ask(self, ask: Ask) -> Outcome:
        assert self._node.stdin is not None
        answer: Future[dict[str, Any]] = Future()
        line = {
            "id": id(answer),
            "address": self._address,
            "path": ask.path,
            "kind": ask.kind,
            "requests": [base64.b64encode(request).decode() for request in ask.requests],
            "timeout": ask.timeout,
            "metadata": [[name, _text(value)] for name, value in ask.metadata],
            "in_turn": ask.in_turn,
            "cancel_after": ask.cancel_after,
            "gzip": ask.gzip,
        }
        with self._lock:
            self._waiting[id(answer)] = answer
            self._node.stdin.write(json.dumps(line) + "\n")
            self._node.stdin.flush()
        told = answer.result(timeout=60)
        return Outcome(
            [base64.b64decode(response) for response in told["responses"]],
            told["status"],
            told["message"],
            _metadata(told["initial"]),
            _metadata(told["trailing"]),
        )

    def close(self) -> None:
        self._node.kill()
        self._reader.join()
        self._node.communicate()

    def _read(self) -> None:
        assert self._node.stdout is not None
        for line in self._node.stdout:
            told = json.loads(line)
            self._waiting.pop(told["id"]).set_result(told)


def _text(value: str | bytes) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _metadata(pairs: list[list[str]]) -> dict[str, str | bytes]:
    return {name: base64.b64decode(value) if name.endswith("-bin") else value for name, value in pairs}
