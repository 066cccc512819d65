"""The same on S3, a server that shares the cores with its clients and sets the pace."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import Table
from benchmarks.checkpoint_throughput import many, memory, sizes, stalls
from benchmarks.checkpoint_throughput.dcp import Dcp, DcpSaves
from benchmarks.checkpoint_throughput.dcp_s3 import s3_dcp
from benchmarks.checkpoint_throughput.loads import DCP, NAME, STRATA, STRATA_NEW, rows
from benchmarks.checkpoint_throughput.places import Place
from benchmarks.checkpoint_throughput.saves import Saves, settling
from benchmarks.checkpoint_throughput.scale import OBJECT_STATE_BYTES
from benchmarks.checkpoint_throughput.states import State, bytes_of, check_same, layers, room_for
from benchmarks.storage.clients import Server, strata_storage
from benchmarks.storage.contest import contest
from benchmarks.storage.source import source_bytes
from benchmarks.storage.turns import rate, ratio, take_turns
from strata import background
from strata.storage.direct import Block
from tests.servers.processes import BUCKET, S3_KEY, S3_SECRET, seaweedfs

ROUNDS, LOAD_ROUNDS, FEW_ROUNDS = 5, 5, 3
VOLUMES = 400
"""Deleted objects keep their room for a while."""
LEAST_OF_BARE = 0.85
SAVE, BARE, DCP_SAVE = "Strata save", "Strata write", "DCP save, s3torchconnector"


def tables(folder: Path, loop: asyncio.Runner) -> Iterator[Table]:
    with seaweedfs(folder, volumes=VOLUMES) as started:
        server = Server(started.endpoint, BUCKET, S3_KEY, S3_SECRET)
        storage = strata_storage(server)
        how = s3_dcp(server)

        def write(name: str, data: Block) -> None:
            background.run(storage.write(name, data))

        place = Place("S3 on SeaweedFS", storage, server, "an upload", write)
        state = layers(OBJECT_STATE_BYTES)
        try:
            yield from _transfers(place, server, state, how, loop)
            yield stalls.later(place, state, how, FEW_ROUNDS)
            del state
            yield memory.table(place)
            yield from many.tables(place, FEW_ROUNDS)
            yield sizes.table(place, FEW_ROUNDS)
        finally:
            background.run(storage.close())


def _transfers(place: Place, server: Server, state: State, how: Dcp | None, loop: asyncio.Runner) -> Iterator[Table]:
    """Saves and loads, beside bare transfers of as many bytes from memory."""
    size = bytes_of(state)
    peer = None if how is None else DcpSaves(how, state)
    with contest(server, source_bytes(size), loop) as entered:
        with place.manager("saves") as manager:
            strata = Saves(manager, state)
            saves: dict[str, Callable[[], object]] = {SAVE: strata.save, BARE: entered.uploads[BARE]}
            saves |= {name: entered.uploads[name] for name in entered.others}
            if peer is not None:
                saves[DCP_SAVE] = peer.save
            turns = take_turns(saves, ROUNDS, settling(strata, peer))
        found = [rate(name, each, size) for name, each in turns.items()]
        found.append(ratio(f"{SAVE} / {BARE}", turns[SAVE], turns[BARE], target=LEAST_OF_BARE))
        found += [ratio(f"{SAVE} / {name}", turns[SAVE], turns[name]) for name in entered.others]
        if peer is not None:
            found.append(ratio(f"{SAVE} / {DCP_SAVE}", turns[SAVE], turns[DCP_SAVE], target=1.0))
        yield Table(f"Save of {size >> 20:,} MiB in {len(state)} tensors, {place.name}, until committed", found)
        loads = _loads(place, how, state) | dict(entered.downloads)
        turns = take_turns(loads, LOAD_ROUNDS)
        if how is not None:
            how.remove(NAME)
    yield Table(f"Load of {size >> 20:,} MiB, {place.name}", rows(turns, size))


def _loads(place: Place, how: Dcp | None, state: State) -> dict[str, Callable[[], object]]:
    """Each tried once, and compared with what was saved."""
    reader, room = place.reader("saves"), room_for(state)
    found: dict[str, Callable[[], object]] = {STRATA: lambda: reader.load(into=room), STRATA_NEW: reader.load}
    if how is not None:
        how.save(state, NAME)
        found[DCP] = lambda: how.load(room, NAME)
    for act in found.values():
        for tensor in room.values():
            tensor.fill_(0.5)
        check_same(act() or room, state)
    return found
