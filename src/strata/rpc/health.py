"""`grpc.health.v1`, as a service like any other: whether the whole, or one service of it, takes calls."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from strata.rpc.service import Call, Method, protobuf_service
from strata.rpc.status import RpcError, Status

WATCHERS = 1000
"""At once. A watcher stays for as long as it likes, so there is a bound."""


class Health:
    """Starts out serving. The empty name stands for the server as a whole."""

    def __init__(self, services: Iterable[str] = ()) -> None:
        from grpc_health.v1 import health_pb2

        self._messages: Any = health_pb2
        self._serving = dict.fromkeys(["", *services], True)
        self._changed = asyncio.Event()
        self._watchers = 0

    def methods(self) -> list[Method]:
        return protobuf_service(self._messages.DESCRIPTOR.services_by_name["Health"], self)

    def set(self, service: str, *, serving: bool) -> None:
        """Those who watch are told."""
        self._serving[service] = serving
        self._tell()

    def set_all(self, *, serving: bool) -> None:
        """Such as when the server is about to go."""
        self._serving = dict.fromkeys(self._serving, serving)
        self._tell()

    def check(self, request: Any, call: Call) -> Any:
        if request.service not in self._serving:
            raise RpcError(Status.NOT_FOUND, f"no service {request.service[:256]!r} is known here")
        return self._answer(request.service)

    def list(self, request: Any, call: Call) -> Any:
        return self._messages.HealthListResponse(statuses={name: self._answer(name) for name in self._serving})

    async def watch(self, request: Any, call: Call) -> AsyncIterator[Any]:
        if self._watchers >= WATCHERS:
            raise RpcError(Status.RESOURCE_EXHAUSTED, f"{WATCHERS:,} watch already: ask again and again instead")
        self._watchers += 1
        try:
            told = None
            while True:
                changed, answer = self._changed, self._answer(request.service)
                if answer != told:
                    yield answer
                    told = answer
                if changed is self._changed:
                    await changed.wait()
        finally:
            self._watchers -= 1

    def _answer(self, service: str) -> Any:
        kinds = self._messages.HealthCheckResponse
        serving = self._serving.get(service)
        names = {None: kinds.SERVICE_UNKNOWN, True: kinds.SERVING, False: kinds.NOT_SERVING}
        return kinds(status=names[serving])

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
