"""Does a storage keep its promises, from here, with these credentials? Everything is tried for real and timed."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from strata.errors import StorageFull, StorageUnavailable, StrataError
from strata.storage import check_local
from strata.storage.backend import MIB, StorageBackend, StorageOptions
from strata.storage.check_local import Broken, Remark
from strata.storage.check_steps import PIECE_BYTES, PIECES, RACERS, Trial
from strata.storage.keys import join
from strata.storage.local import LocalStorage
from strata.storage.traces import leaving_no_trace
from strata.texts import readable_bytes

OPTIONS = StorageOptions(part_bytes=8 * MIB, connect_seconds=5, retries=3, retry_seconds=15)
"""Somebody is waiting, so it gives up early; and its large object is one of several parts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How one step went; `ok` is None if it was not tried. One that passed but `warns` has something to say that should
    not go unread."""

    name: str
    ok: bool | None
    seconds: float
    message: str
    warns: bool = False


class _Step(NamedTuple):
    name: str
    run: Callable[[], Awaitable[Remark]]
    basic: bool = False
    """If it fails, so will all after it."""


async def check(storage: StorageBackend) -> AsyncGenerator[Finding, None]:
    """Try everything in a new folder of the storage, and remove what was made there, however this ends."""
    trial = Trial(storage, f"strata-check-{secrets.token_hex(8)}")
    with leaving_no_trace(storage):
        try:
            for step in _steps(trial):
                finding, error = await _timed(step)
                yield finding
                if error is not None and (step.basic or isinstance(error, StorageUnavailable | StorageFull)):
                    yield _skipped(trial, error)
                    break
        except BaseException:
            await trial.clean_up()
            raise
        if trial.wrote:
            finding, error = await _timed(_Step("clean up", trial.clean_up))
            yield finding if error is None else _left(trial, finding)


def _steps(trial: Trial) -> list[_Step]:
    steps = [
        _Step("write", trial.write, basic=True),
        _Step("read back", trial.read_back, basic=True),
        _Step("read a range", trial.read_a_range),
        _Step("list", trial.list_everything, basic=True),
        _Step("list one folder", trial.list_one_folder),
        _Step("overwrite", trial.overwrite),
        _Step(f"stream {readable_bytes(PIECES * PIECE_BYTES)}", trial.stream_large),
        _Step("abort a stream", trial.abort_a_stream),
        _Step("put if absent", trial.put_if_absent),
        _Step(f"race {RACERS} writers", trial.race),
        _Step("compare and swap", trial.compare_and_swap),
        _Step("delete", trial.delete),
    ]
    return steps + _local_steps(trial.storage.root) if isinstance(trial.storage, LocalStorage) else steps


def _local_steps(root: Path) -> list[_Step]:
    probes = {
        "filesystem": check_local.filesystem,
        "free space": check_local.free_space,
        "direct writes": check_local.direct_writes,
        "sync": check_local.syncs,
        "file locks": check_local.file_locks,
    }

    def threaded(probe: Callable[[Path], Remark]) -> Callable[[], Awaitable[Remark]]:
        return lambda: asyncio.to_thread(probe, root)

    return [_Step(name, threaded(probe)) for name, probe in probes.items()]


async def _timed(step: _Step) -> tuple[Finding, Exception | None]:
    began = perf_counter()
    try:
        remark = await step.run()
    except (StrataError, Broken, OSError) as error:
        return Finding(step.name, False, perf_counter() - began, str(error)), error
    return Finding(step.name, True, perf_counter() - began, remark.words, remark.warns), None


def _skipped(trial: Trial, error: Exception) -> Finding:
    why = "not tried: nothing more can be said until this works"
    if not trial.wrote and isinstance(error, StorageUnavailable):
        why += f". Should the write have happened after all, it is in {join(trial.storage.url, trial.folder)}"
    return Finding("the rest", None, 0.0, why, warns=True)


def _left(trial: Trial, finding: Finding) -> Finding:
    where = join(trial.storage.url, trial.folder)
    return Finding(finding.name, False, finding.seconds, f"{finding.message}. Remove {where} by hand")
