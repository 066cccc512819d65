"""Who takes part: each in a process of its own, peers in environments of their own, installed on the first run into
build/peers-data. One that cannot be had is left out, and that is said."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.data_loading.scale import ROW_GROUPS
from benchmarks.storage import BUILD

ROOT = Path(__file__).parents[2]
PEERS = BUILD / "peers-data"
STRATA, BARE = "strata", "bare"
PACKAGES = {
    "litdata": ("torch==2.13.0", "litdata==0.2.76", "msgspec"),
    "mosaic": ("torch==2.15.0", "torchvision==0.29.2", "mosaicml-streaming==0.13.0", "msgspec"),
    "grain": ("grain==0.2.18", "array-record==0.8.6", "msgspec"),
    "hf": ("datasets==5.2.0", "msgspec"),
}
"""In this order. Mosaic wants torchvision, which does not run with the small build of torch: CUDA comes along."""
NAMES = {
    STRATA: "Strata",
    BARE: "bare reads",
    "litdata": "LitData",
    "mosaic": "MosaicML Streaming",
    "grain": "Grain",
    "hf": "HF datasets",
}


class Contender(NamedTuple):
    """One of them, and how it is set up."""

    kind: str
    settings: dict[str, Any] = {}  # noqa: RUF012  never changed
    said: str = ""

    @property
    def name(self) -> str:
        return f"{NAMES[self.kind]}, {self.said}" if self.said else NAMES[self.kind]


AS_IT_COMES, WHOLE_CHUNKS = {"window": "auto"}, {"window": "full"}
"""How LitData shuffles the rows of a chunk."""
PERMUTED = Contender("hf", {"streamed": False}, "all rows permuted")
STREAMED = Contender("hf", {"streamed": True}, "a stream with a buffer of 10,000")


def by_row_group(kind: str) -> list[Contender]:
    """Those that read Parquet."""
    return [Contender(kind, {"row_group": rows}, f"row groups of {rows:,}") for rows in ROW_GROUPS]


class Player:
    """The process of a contender."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._log = PEERS / f"{kind}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [python_of(kind), "-m", f"benchmarks.data_loading.with_{kind}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": _path(kind), "HF_HUB_OFFLINE": "1", "HF_HOME": str(PEERS / "hf-home")},
                text=True,
            )

    def ask(self, act: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"act": act, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{NAMES[self.kind]} ended in {act}: {_end_of(self._log)}")
        return json.loads(answer)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()


@contextmanager
def players(kinds: list[str]) -> Iterator[dict[str, Player]]:
    started: dict[str, Player] = {}
    try:
        for kind in kinds:
            started[kind] = Player(kind)
        yield started
    finally:
        for player in started.values():
            player.stop()


@contextmanager
def player(kind: str) -> Iterator[Player]:
    with players([kind]) as started:
        yield started[kind]


def available() -> list[str]:
    """The peers that can be had."""
    found = []
    for kind in PACKAGES:
        _install(kind)
        tried = subprocess.run(
            [python_of(kind), "-c", f"import benchmarks.data_loading.with_{kind}"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": _path(kind)},
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode:
            why = " ".join(tried.stderr.splitlines()[-1:])
            print(f"{NAMES[kind]} is left out: it cannot be imported here: {why}", file=sys.stderr)
        else:
            found.append(kind)
    return found


def python_of(kind: str) -> str:
    return str(PEERS / kind / "bin" / "python") if kind in PACKAGES else sys.executable


def _path(kind: str) -> str:
    return str(ROOT) if kind in PACKAGES else os.pathsep.join([str(ROOT / "src"), str(ROOT)])


def _install(kind: str) -> None:
    home = PEERS / kind
    if home.exists():
        return
    PEERS.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    for package in PACKAGES[kind]:
        subprocess.run([python_of(kind), "-m", "pip", "install", "-qq", package], check=False)


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
