"""S3 as a server on this machine has it: it shares the cores with its clients, and sets the pace."""

import asyncio
from pathlib import Path

from benchmarks import Row, Table
from benchmarks.storage.clients import Server
from benchmarks.storage.contest import Contest, contest
from benchmarks.storage.source import source_bytes
from benchmarks.storage.turns import Contenders, median_seconds, rate, ratio, take_turns
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, seaweedfs

SIZE, ROUNDS = 128_000_000, 15
LEAST_RATIO = 0.95
VOLUMES = 200
"""Deleted objects keep their room for a while."""


def tables(folder: Path, loop: asyncio.Runner) -> list[Table]:
    source = source_bytes(SIZE)
    with seaweedfs(folder, volumes=VOLUMES) as started:
        server = Server(started.endpoint, BUCKET, S3_KEY, S3_SECRET)
        with contest(server, source, loop) as entered:
            up = _compared(f"S3 on SeaweedFS: upload of {SIZE / 1e6:.0f} MB", entered, entered.uploads)
            return [up, _compared(f"S3 on SeaweedFS: download of {SIZE / 1e6:.0f} MB", entered, entered.downloads)]


def _compared(title: str, entered: Contest, contenders: Contenders) -> Table:
    turns = take_turns(contenders, ROUNDS)
    better = min(entered.others, key=lambda name: median_seconds(turns[name]))
    rows: list[Row] = []
    for name, own in turns.items():
        rows.append(rate(name, own, SIZE))
        if name not in entered.others:
            rows.append(ratio(f"{name} / {better}", own, turns[better], target=LEAST_RATIO))
    return Table(title, rows)
