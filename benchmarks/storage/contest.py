"""Strata against the others on one server: each of them with its best setting."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.storage.clients import (
    SETTINGS,
    Client,
    Server,
    Transfers,
    boto3_client,
    obstore_client,
    strata_storage,
    strata_transfers,
    stream,
)
from benchmarks.storage.turns import Contenders
from strata.storage.direct import Block


class Contest(NamedTuple):
    """Who takes turns. What `write` and the writer of Strata put is read back in the same way."""

    uploads: Contenders
    downloads: Contenders
    others: list[str]


@contextmanager
def contest(server: Server, source: Block, loop: asyncio.Runner) -> Iterator[Contest]:
    storage = strata_storage(server)
    own = strata_transfers(storage, loop)
    others = dict(
        [
            _tuned("obstore", obstore_client(loop), server, source),
            _tuned("boto3", boto3_client, server, source),
        ]
    )
    try:
        yield Contest(
            {
                "Strata write": lambda: own.up(source),
                "Strata open_writer": lambda: loop.run(stream(storage, "streamed", source)),
                **{name: _up(transfers, source) for name, transfers in others.items()},
            },
            {"Strata read": own.down, **{name: transfers.down for name, transfers in others.items()}},
            list(others),
        )
    finally:
        loop.run(storage.close())


def _tuned(name: str, client: Client, server: Server, source: Block) -> tuple[str, Transfers]:
    """The fastest of a few, each tried once after a first go that only warms up."""
    tried = []
    for setting in SETTINGS:
        transfers = client(server, setting)
        transfers.up(source[: setting.part_bytes * 2])
        began = time.perf_counter()
        transfers.up(source)
        tried.append((time.perf_counter() - began, f"{name}, {setting}", transfers))
    _, named, best = min(tried, key=lambda one: one[0])
    return named, best


def _up(transfers: Transfers, source: Block) -> Callable[[], object]:
    return lambda: transfers.up(source)
