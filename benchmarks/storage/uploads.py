"""Uploads to a sink: what the client itself can do, and what it spends on it."""

import asyncio

from benchmarks import Row, Table
from benchmarks.storage import sink
from benchmarks.storage.clients import Server
from benchmarks.storage.contest import contest
from benchmarks.storage.source import source_bytes
from benchmarks.storage.turns import cpu, rate, ratio, take_turns

SIZE, ROUNDS = 512_000_000, 7
PUBLISHED = 202.0
"""What the system Strata follows published for S3, in MB/s; to be well above is to be twice that."""


def tables(loop: asyncio.Runner) -> list[Table]:
    source = source_bytes(SIZE)
    with sink.running() as endpoint, contest(Server(endpoint, "bucket", "key", "secret"), source, loop) as entered:
        turns = take_turns(entered.uploads, ROUNDS)
    rates: list[Row] = []
    spent: list[Row] = []
    boto3 = next(name for name in turns if name.startswith("boto3"))
    for name, own in turns.items():
        strata = name not in entered.others
        rates.append(rate(name, own, SIZE, target=2 * PUBLISHED if strata else None))
        spent.append(cpu(name, own, SIZE))
        if strata:
            rates.append(ratio(f"{name} / {boto3}", own, turns[boto3]))
    title = f"S3 upload of {SIZE / 1e6:.0f} MB to a sink that checks every digest"
    return [Table(title, rates), Table(f"{title}: the client's CPU time", spent)]
