"""Loads, from the page cache and from the disk, into tensors that are there and as new ones."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks import Row, Table
from benchmarks.checkpoint_throughput.dcp import Dcp
from benchmarks.checkpoint_throughput.places import Place, forget_all
from benchmarks.checkpoint_throughput.saves import save_safetensors
from benchmarks.checkpoint_throughput.states import State, bytes_of, check_same, room_for
from benchmarks.storage.turns import Contenders, Turns, nothing, rate, ratio, take_turns
from strata.checkpoint import CheckpointReader
from strata.storage.direct import aligned

ROUNDS = 5
LEAST_OF_DCP = 2.0
NAME = "dcp-loaded"
STRATA, STRATA_NEW = "Strata, into tensors that are there", "Strata, as new tensors"
BARE = "bare O_DIRECT reads"
BARE_BYTES, BARE_AT_ONCE, BLOCK = 32 << 20, 4, 4096
DCP, DCP_NEW = "DCP, into tensors that are there", "DCP, into new tensors"
MAPPED, READ = (
    "safetensors load_file, copied into tensors that are there",
    "safetensors load_file by pread, as new tensors",
)


def tables(place: Place, state: State, how: Dcp) -> Iterator[Table]:
    """From a disk."""
    assert place.folder is not None
    folder, file = place.folder, place.folder / "loaded.safetensors"
    how.save(state, NAME)
    save_safetensors(state, file)
    with place.manager("loads") as manager:
        manager.save(state, 1)
    room = room_for(state)
    reader = place.reader("loads")
    contenders = _contenders(reader, how, file, room)
    try:
        bare: Contenders = {BARE: _bare(file)}
        for what, between, beside in (("warm", nothing, {}), ("cold", lambda: forget_all(folder), bare)):
            turns = take_turns({**contenders, **beside}, ROUNDS, between)
            _check(contenders, room, state)
            yield Table(
                f"Load of {bytes_of(state) >> 20:,} MiB from a local disk, {what}", rows(turns, bytes_of(state))
            )
    finally:
        reader.close()
        how.remove(NAME)
        file.unlink()


def _bare(file: Path) -> Callable[[], None]:
    """The disk alone: whole blocks past the page cache, into memory that has been touched, four reads at a time."""
    size = file.stat().st_size // BLOCK * BLOCK
    memory = aligned(size)
    memory[:] = 0

    def read() -> None:
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)

        def some(start: int) -> None:
            end = min(start + BARE_BYTES, size)
            while start < end:
                start += os.preadv(descriptor, [memory[start:end].data], start)

        try:
            with ThreadPoolExecutor(BARE_AT_ONCE) as threads:
                list(threads.map(some, range(0, size, BARE_BYTES)))
        finally:
            os.close(descriptor)

    return read


def _contenders(reader: CheckpointReader, how: Dcp, file: Path, room: State) -> Contenders:
    def mapped() -> None:
        """Its tensors are pages of the file, of which nothing is read before it is used."""
        for name, tensor in load_file(file).items():
            room[name].copy_(tensor)

    def into_new() -> State:
        made = {name: torch.empty_like(tensor) for name, tensor in room.items()}
        how.load(made, NAME)
        return made

    found: dict[str, Callable[[], object]] = {
        STRATA: lambda: reader.load(into=room),
        STRATA_NEW: reader.load,
        DCP: lambda: how.load(room, NAME),
        DCP_NEW: into_new,
        MAPPED: mapped,
        READ: lambda: load_file(file, backend="pread"),
    }
    return found


def _check(contenders: Contenders, room: State, state: State) -> None:
    """Each once more, and compared."""
    for act in contenders.values():
        for tensor in room.values():
            tensor.fill_(0.5)
        check_same(act() or room, state)


def rows(turns: Turns, size: int) -> list[Row]:
    found = [rate(name, each, size) for name, each in turns.items()]
    if DCP in turns:
        found.append(ratio(f"{STRATA} / DCP", turns[STRATA], turns[DCP], target=LEAST_OF_DCP))
    if BARE in turns:
        found.append(ratio(f"{STRATA} / {BARE}", turns[STRATA], turns[BARE]))
        found.append(ratio(f"{BARE} / DCP", turns[BARE], turns[DCP]))
    if DCP_NEW in turns:
        found.append(ratio(f"{STRATA_NEW} / DCP", turns[STRATA_NEW], turns[DCP_NEW]))
    return found
