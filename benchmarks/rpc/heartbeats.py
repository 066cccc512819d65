"""What is served: a heartbeat as a coordinator has it, with its token, and streams of small messages both ways."""

import hmac
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from strata.rpc import Call, Interceptor, Kind, Method, RpcError, Status
from strata.rpc.head import Head

TOKEN = "a-token-of-some-length-0123456789"
SERVICE = "strata.bench.Hub"
MESSAGES = 100_000
"""In a stream of responses."""


def _messages() -> tuple[Any, Any]:
    """Made here: the wire contract of the coordinator is not this package's business."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="strata.bench", syntax="proto3")
    fields = {
        "Beat": [("job_id", 9), ("worker_id", 9), ("incarnation", 4), ("step", 4), ("generation", 4)],
        "Pulse": [("generation", 4), ("lease_milliseconds", 4)],
    }
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for number, (member, kind) in enumerate(members, 1):
            message.field.add(name=member, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    beat, pulse = (message_factory.GetMessageClass(pool.FindMessageTypeByName(f"strata.bench.{n}")) for n in fields)
    return beat, pulse


Beat, Pulse = _messages()


def a_beat() -> bytes:
    beat: bytes = Beat(
        job_id="llama-70b", worker_id="worker-0042", incarnation=3, step=123_456, generation=17
    ).SerializeToString()
    return beat


class Hub:
    """Every heartbeat renews a lease."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, str], tuple[int, int]] = {}

    def methods(self) -> list[Method]:
        return [
            Method(f"/{SERVICE}/Heartbeat", self.heartbeat, Kind.UNARY, Beat.FromString, Pulse.SerializeToString),
            Method(f"/{SERVICE}/Report", self.report, Kind.CLIENT_STREAM, Beat.FromString, Pulse.SerializeToString),
            Method(f"/{SERVICE}/Watch", self.watch, Kind.SERVER_STREAM, Beat.FromString, Pulse.SerializeToString),
        ]

    def heartbeat(self, beat: Any, call: Call) -> Any:
        self._leases[beat.job_id, beat.worker_id] = (beat.incarnation, beat.step)
        return Pulse(generation=beat.generation, lease_milliseconds=10_000)

    async def report(self, beats: AsyncIterator[Any], call: Call) -> Any:
        count = 0
        async for beat in beats:
            self._leases[beat.job_id, beat.worker_id] = (beat.incarnation, beat.step)
            count += 1
        return Pulse(generation=count)

    async def watch(self, beat: Any, call: Call) -> AsyncIterator[Any]:
        for number in range(MESSAGES):
            yield Pulse(generation=number, lease_milliseconds=10_000)


class Door(Interceptor):
    """A bearer token, compared in constant time."""

    def __init__(self) -> None:
        self._wanted = f"Bearer {TOKEN}".encode()

    def authenticate(self, head: Head) -> object:
        said = head.value("authorization")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(), self._wanted):
            raise RpcError(Status.UNAUTHENTICATED, "a valid token is needed")
        return "worker"
