"""What each server is asked: the messages, by kind of server."""

from benchmarks.coordinator.wire import GrpcConnection
from benchmarks.rpc.server import Running
from strata.v1 import coordinator_pb2 as pb

JOB = "llama-70b"


def text(number: int, value: bytes) -> bytes:
    """A field of bytes in protobuf; shorter than 128."""
    return bytes([number << 3 | 2, len(value)]) + value


def path(kind: str, method: str) -> str:
    return f"/strata.v1.Coordinator/{method}" if kind in ("strata", "grpcio") else _FOREIGN[kind, method]


_FOREIGN = {
    ("torchft", "Heartbeat"): "/torchft.LighthouseService/Heartbeat",
    ("torchft", "WaitBarrier"): "/torchft.LighthouseService/Quorum",
    ("etcd", "Heartbeat"): "/etcdserverpb.Lease/LeaseKeepAlive",
    ("etcd", "Register"): "/etcdserverpb.KV/Put",
    ("etcd", "WaitBarrier"): "/etcdserverpb.KV/Put",
    ("etcd", "Watch"): "/etcdserverpb.Watch/Watch",
}


def worker(number: int) -> str:
    return f"worker-{number:05}"


def register(number: int, world_size: int) -> bytes:
    return pb.RegisterRequest(
        job_id=JOB,
        worker_id=worker(number),
        nonce=f"nonce-{number}",
        rank=number,
        world_size=world_size,
        ip="10.0.0.1",
        port=29500,
        gpu_count=8,
        memory_bytes=1 << 40,
    ).SerializeToString()


def heartbeat(kind: str, number: int) -> bytes:
    if kind == "torchft":
        return text(1, worker(number).encode())
    if kind == "etcd":
        return b"\x08\x01"  # LeaseKeepAliveRequest: ID = 1
    return pb.HeartbeatRequest(
        job_id=JOB,
        worker_id=worker(number),
        incarnation=number + 1,
        state=pb.WorkerState.WORKER_STATE_TRAINING,
        step=123_456,
        epoch=3,
    ).SerializeToString()


def beats(node: int, workers: int = 8) -> bytes:
    """Those of all workers of a node, in one message."""
    batch = pb.HeartbeatBatchRequest(job_id=JOB)
    for number in range(node * workers, (node + 1) * workers):
        batch.heartbeats.add(
            worker_id=worker(number),
            incarnation=number + 1,
            state=pb.WorkerState.WORKER_STATE_TRAINING,
            step=123_456,
            epoch=3,
        )
    return batch.SerializeToString()


def dataset() -> bytes:
    """10,000 shards."""
    return pb.RegisterDatasetRequest(
        job_id=JOB, dataset_id="tokens", total_samples=100_000_000, shard_size=10_000, shuffle=True
    ).SerializeToString()


def shards() -> bytes:
    """Those of one rank."""
    return pb.GetShardsRequest(job_id=JOB, dataset_id="tokens", rank=7, epoch=3).SerializeToString()


def put(number: int) -> bytes:
    """etcd: as much as a registration holds, under a key of its own."""
    return text(1, f"/{JOB}/{worker(number)}".encode()) + text(2, register(number, 100)[:100])


def arrive(kind: str, number: int, arrival: int, count: int) -> bytes:
    if kind == "torchft":
        return text(1, text(1, worker(number).encode()) + text(2, b"http://10.0.0.1:29500") + b"\x20\x01\x28\x01")
    return pb.WaitBarrierRequest(
        job_id=JOB,
        worker_id=worker(number),
        incarnation=number + 1,
        barrier_id="step",
        arrival=arrival,
        settled=arrival - 1,
        expected_participants=count,
    ).SerializeToString()


RELEASED = b"released/"


def watch_released() -> bytes:
    """etcd: a WatchCreateRequest for all keys that begin so."""
    return text(1, text(1, RELEASED) + text(2, RELEASED[:-1] + b"0"))


def put_arrival(number: int, arrival: int) -> bytes:
    return text(1, b"arrived/%d/%d" % (arrival, number))


def put_released(arrival: int) -> bytes:
    return text(1, RELEASED + b"%d" % arrival)


def populate(server: Running, workers: int) -> None:
    """Everybody who will be heard of is registered; in etcd, one lease is granted; torchft hears of all, since it waits
    for nobody whom it has not heard of."""
    if server.kind == "etcd":
        GrpcConnection(server.address, "/etcdserverpb.Lease/LeaseGrant").exchange(b"\x08\x90\x1c\x10\x01")
    elif server.kind == "torchft":
        _each(server, "Heartbeat", [heartbeat("torchft", number) for number in range(workers)])
    elif server.kind in ("strata", "grpcio"):
        _each(server, "Register", [register(number, workers) for number in range(workers)])


def _each(server: Running, method: str, messages: list[bytes]) -> None:
    connection = GrpcConnection(server.address, path(server.kind, method))
    for message in messages:
        connection.exchange(message)
    connection.socket.close()
