"""A folder: durable writes beside a bare O_DIRECT loop and beside a plain write with fsync; and reads."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks import Row, Table
from benchmarks.storage.plain import bare_direct, buffered
from benchmarks.storage.source import source_bytes
from benchmarks.storage.turns import Contenders, Turns, dropped, rate, ratio, take_turns
from strata.storage import LocalStorage
from strata.storage.backend import Data
from strata.storage.direct import Block

WRITERS = 8
LARGE = 1_000_000_000
FOLDER = "checkpoint"
BARE = "bare O_DIRECT"


class Case(NamedTuple):
    """Objects of one size, so many in one turn, by so many writers at once; and how fast that should be."""

    what: str
    size: int
    objects: int
    writers: int
    rounds: int
    least_rate: float | None = None
    least_ratio: float | None = None


CASES = (
    Case(f"1 MB, {WRITERS} writers at once", 1_000_000, 64, WRITERS, 9, 520.0),
    Case(f"10 MB, {WRITERS} writers at once", 10_000_000, 32, WRITERS, 9, 510.0),
    Case("100 MB", 100_000_000, 1, 1, 15, 505.0, 0.9),
    Case("1 GB", LARGE, 1, 1, 7, None, 0.9),
)


def tables(folder: Path, loop: asyncio.Runner) -> list[Table]:
    source = source_bytes(LARGE)
    storage = LocalStorage(folder)
    try:
        return [*(_writes(case, storage, source[: case.size], loop) for case in CASES), _reads(storage, source, loop)]
    finally:
        loop.run(storage.close())


def _writes(case: Case, storage: LocalStorage, source: Block, loop: asyncio.Runner) -> Table:
    (storage.root / FOLDER).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(case.writers) as threads:
        turns = take_turns(_writing(case, storage, source, loop, threads), case.rounds)
    for written in (storage.root / FOLDER).iterdir():
        written.unlink()
    return Table(f"Local durable write, {case.what}", _rows(case, turns))


def _rows(case: Case, turns: Turns) -> list[Row]:
    rows: list[Row] = []
    for name, own in turns.items():
        strata = name.startswith("Strata")
        rows.append(rate(name, own, case.size * case.objects, target=case.least_rate if strata else None))
        if strata:
            rows.append(ratio(f"{name} / {BARE}", own, turns[BARE], target=case.least_ratio))
    return rows


def _writing(
    case: Case, storage: LocalStorage, source: Block, loop: asyncio.Runner, threads: ThreadPoolExecutor
) -> Contenders:
    unaligned = source.tobytes()

    def strata(name: str, data: Data) -> Callable[[], object]:
        return lambda: loop.run(_write(storage, case, name, data))

    def plain(write: Callable[[Path], None], name: str) -> Callable[[], object]:
        targets = [storage.root / FOLDER / f"{name}-{number}" for number in range(case.objects)]
        return lambda: list(threads.map(write, targets))

    return {
        "Strata, aligned memory": strata("aligned", source),
        "Strata, bytes": strata("bytes", unaligned),
        BARE: plain(lambda target: bare_direct(target, case.size), "bare"),
        "write + fsync": plain(lambda target: buffered(target, source), "buffered"),
    }


async def _write(storage: LocalStorage, case: Case, name: str, data: Data) -> None:
    async def writer(first: int) -> None:
        for number in range(first, case.objects, case.writers):
            await storage.write(f"{FOLDER}/{name}-{number}", data)

    await asyncio.gather(*(writer(first) for first in range(case.writers)))


def _reads(storage: LocalStorage, source: Block, loop: asyncio.Runner) -> Table:
    rows: list[Row] = []
    for what, size, rounds in (("100 MB", 100_000_000, 9), ("1 GB", LARGE, 5)):
        path = f"{FOLDER}/{size}"
        loop.run(storage.write(path, source[:size]))

        def read(path: str = path) -> None:
            loop.run(dropped(storage.read(path)))

        def read_cold(path: str = path) -> None:
            forget(storage.root / path)
            loop.run(dropped(storage.read(path)))

        turns = take_turns({"from the disk": read_cold, "from the page cache": read}, rounds)
        rows += [rate(f"{what}, {name}", own, size) for name, own in turns.items()]
    return Table("Local read", rows)


def forget(file: Path) -> None:
    """Out of the page cache, as far as the kernel agrees."""
    if hasattr(os, "posix_fadvise"):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
