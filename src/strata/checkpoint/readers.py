"""Who reads what: a mark in the storage, so that no writer deletes files from under a reader.

    reader    puts its mark, then looks whether the checkpoint is still there, then reads
    writer    removes the manifest, then looks for marks, then removes files

Whichever is first, the other sees it. A mark that is not renewed runs out: its reader is dead. Where a reader may not
write, it reads without, and is told so: then what it reads may be deleted under its hands, which it notices.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec

from strata.checkpoint.manifest import UNREADABLE
from strata.checkpoint.store import Folder, Store, folders_of
from strata.errors import CheckpointDamaged, NotFound, ObjectNotFound, StorageError
from strata.logs import get_logger

logger = get_logger("strata.checkpoint")

READERS = "readers"
MARK_SECONDS = 600.0
"""How long a mark counts that is not renewed: longer than clocks differ."""
FAR_AHEAD_SECONDS = 86_400.0
"""No clock goes so wrong: a mark for longer is none, or it would keep files for ever."""
RENEW_SECONDS = 120.0


class Mark(msgspec.Struct, frozen=True):
    """Somebody reads these folders, until then."""

    folders: list[str]
    until_unix_seconds: float


class CheckpointGone(NotFound):
    """It was there a moment ago."""


@asynccontextmanager
async def marked(store: Store, folder: Folder, *, strictly: bool = False) -> AsyncIterator[None]:
    """While this lasts nobody deletes the files of the checkpoint. CheckpointGone if it is deleted already, or where no
    mark could be made, while it is read. `strictly`: a mark that cannot be made is an error."""
    try:
        names = sorted({folder.name, *folders_of((await store.metadata(folder)).references)})
    except ObjectNotFound:
        raise gone(store, folder) from None
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(claimed(store, names))
        except StorageError as error:
            if strictly:
                raise
            _tell(store, error)
        if not await store.is_committed(folder):
            raise gone(store, folder)
        try:
            yield
        except CheckpointDamaged as error:
            if await store.is_committed(folder):
                raise
            raise gone(store, folder) from error


@asynccontextmanager
async def claimed(store: Store, names: list[str]) -> AsyncIterator[None]:
    """While this lasts nobody deletes files of these folders, though nothing in them may be committed yet."""
    key = store.key(READERS, f"{secrets.token_hex(8)}.json")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_remove, store, key)  # also if this ends, or is told to, while it is put
        await _put(store, key, names)
        renewing = asyncio.ensure_future(_renew(store, key, names))
        stack.push_async_callback(_stop, renewing)
        yield


def gone(store: Store, folder: Folder) -> CheckpointGone:
    """To be raised."""
    store.forget(folder)
    return CheckpointGone(f"step {folder.step} in {store.storage.url}/{store.root} was just deleted")


def _tell(store: Store, error: StorageError) -> None:
    """Once for each place."""
    where = f"{store.storage.url}/{store.root}"
    if where not in told_places:
        told_places.add(where)
        logger.warning("reading %s without a mark, so that a job may delete what is being read: %s", where, error)


told_places: set[str] = set()


async def _renew(store: Store, key: str, names: list[str]) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        with suppress(StorageError):
            await _put(store, key, names)


async def _put(store: Store, key: str, names: list[str]) -> None:
    mark = Mark(names, time.time() + MARK_SECONDS)
    await store.storage.write(key, msgspec.json.encode(mark))


async def _remove(store: Store, key: str) -> None:
    await _to_its_end(_removed(store, key))


async def _removed(store: Store, key: str) -> None:
    with suppress(StorageError):  # it runs out by itself
        await store.storage.delete(key)


async def _stop(renewing: "asyncio.Task[None]") -> None:
    """And wait until it has: what it was about to put would come after the removal."""
    renewing.cancel()
    await _to_its_end(asyncio.wait({renewing}))


async def _to_its_end(work: Coroutine[Any, Any, object]) -> None:
    """Also if whoever waits is told to end meanwhile, which it then does."""
    task, told = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            told = error
    task.result()
    if told is not None:
        raise told


async def being_read(store: Store) -> set[str]:
    """The names of folders that somebody reads. Marks that ran out are removed."""
    found = set()
    async for entry in store.storage.list_all(store.key(READERS)):
        try:
            mark = msgspec.json.decode(await store.storage.read(entry.path), type=Mark)
        except ObjectNotFound:  # done since
            continue
        except UNREADABLE:
            mark = Mark([], 0.0)
        now = time.time()
        if now < mark.until_unix_seconds < now + FAR_AHEAD_SECONDS:
            found.update(mark.folders)
        else:
            await store.storage.delete(entry.path)
    return found
