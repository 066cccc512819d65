"""A real coordinator in a process of its own, and a client that speaks to it as any foreign one would."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc

from strata.rpc.status import RpcError, Status
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import from_rpc

READY_SECONDS = 30.0


class CoordinatorProcess:
    """`strata coordinator` on free ports; `start` again after it ended goes on with the same state and ports."""

    def __init__(self, folder: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self._flags = list(flags)
        self._environment = environment or {}
        self._starts = 0
        self.address = "127.0.0.1:0"
        self.http = ""
        self.process: Any = None

    def start(self, *, wait: bool = True) -> Self:
        self._starts += 1
        self.log = self.folder / f"coordinator-{self._starts}.log"
        arguments = ["coordinator", self.address, "--log-format", "json", "--state-dir", str(self.state_dir)]
        arguments += ["--http-port", self.http.rpartition(":")[2] or "0", *self._flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
        self.process = self._launched(arguments, environment | self._environment)
        if wait:
            self.wait_until_ready()
        return self

    def _launched(self, arguments: list[str], environment: dict[str, str]) -> Any:
        """A process, with what `subprocess` has to say of one. Its output is the log."""
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "strata", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        assert self.process is not None
        while (started := self._started()) is None:
            if self.process.poll() is not None:
                raise AssertionError(f"the coordinator ended: {self.log.read_text('utf-8')}")
            if time.monotonic() > deadline:
                raise AssertionError(f"the coordinator is not ready: {self.log.read_text('utf-8')}")
            time.sleep(0.01)
        self.address, self.http = started["address"], started["http"] or ""

    def _started(self) -> Any:
        for line in self.log.read_text("utf-8").splitlines():
            if line.endswith("}") and '"message": "started"' in line:
                return json.loads(line)
        return None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return int(self.process.pid)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """In good order; gives the exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = 30.0) -> int:
        assert self.process is not None
        return int(self.process.wait(seconds))

    def get(self, path: str, token: str = "", scheme: str = "http") -> Any:
        request = urllib.request.Request(f"{scheme}://{self.http}{path}")
        if token:
            request.add_header("authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


@contextmanager
def coordinator(folder: Path, *flags: str, environment: dict[str, str] | None = None) -> Iterator[CoordinatorProcess]:
    running = CoordinatorProcess(folder, *flags, environment=environment)
    try:
        yield running.start()
    finally:
        if running.process is not None and running.process.poll() is None:
            running.signal(signal.SIGKILL)
            running.wait()


def own_job() -> str:
    """The job of a test with the fixture `job`; else that of whoever says none."""
    return os.environ.get("STRATA_JOB_ID") or "default"


class Client:
    """Calls by name on one connection of grpcio's; errors are what the coordinator raised.

    A `patient` one sends nothing before it is connected, so that what fails may have happened.
    """

    def __init__(self, address: str, job: str = "", token: str = "", *, patient: bool = False) -> None:
        self.job = job or own_job()
        self._patient = patient
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        grpc_options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
        grpc_options += [("grpc.min_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        self.channel = grpc.insecure_channel(address, grpc_options)
        self._service = pb.DESCRIPTOR.services_by_name["Coordinator"]

    def call(self, method: str, timeout: float = 20.0, **fields: Any) -> Any:
        request, call = self.prepared(method, **fields)
        try:
            return call(request, timeout=timeout, metadata=self._metadata, wait_for_ready=self._patient)
        except grpc.RpcError as error:
            raise self._told(error) from None

    def start(self, method: str, timeout: float = 60.0, **fields: Any) -> Any:
        """The same as a future."""
        request, call = self.prepared(method, **fields)
        return call.future(request, timeout=timeout, metadata=self._metadata)

    def result(self, future: Any) -> Any:
        try:
            return future.result()
        except grpc.RpcError as error:
            raise self._told(error) from None

    def prepared(self, method: str, **fields: Any) -> tuple[Any, Any]:
        found = self._service.methods_by_name[method]
        request = getattr(pb, found.input_type.name)(job_id=fields.pop("job_id", self.job), **fields)
        respond = getattr(pb, found.output_type.name).FromString
        path = f"/strata.v1.Coordinator/{method}"
        kinds = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, True): self.channel.stream_stream,
        }
        made = kinds[found.client_streaming, found.server_streaming]
        return request, made(path, lambda message: message.SerializeToString(), respond)

    def register(self, worker: str, **fields: Any) -> Any:
        fields.setdefault("nonce", f"{worker}-nonce")
        return self.call("Register", worker_id=worker, **fields)

    def world(self, size: int, prefix: str = "w") -> list[Any]:
        return [self.register(f"{prefix}{rank}", rank=rank, world_size=size) for rank in range(size)]

    def crew(self, size: int) -> list[Any]:
        """Workers of a job that goes on without those that it loses."""
        self.call("ConfigureJob", recovery="carry_on")
        workers = [self.register(f"w{number}") for number in range(size)]
        for who in workers:
            self.call("Recover", worker_id=who.worker_id, incarnation=who.incarnation)
        return workers

    def heartbeat(self, who: Any, **fields: Any) -> Any:
        return self.call("Heartbeat", worker_id=who.worker_id, incarnation=who.incarnation, **fields)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _told(error: Any) -> Exception:
        details = next(
            (value for name, value in error.trailing_metadata() or () if name == "grpc-status-details-bin"), b""
        )
        return from_rpc(RpcError(Status(error.code().value[0]), error.details() or "", details=details))


def post(url: str, body: object, token: str = "") -> tuple[int, Any]:
    """The status and the answer of a POST."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    if token:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
