"""Who is about to write an object that has the same name for every writer, and goes up in parts.

Parts cannot be put where nothing is, as a small object can: the last to finish would win, and a process that was paused
for an hour could replace what its successor has committed. So each puts a stake first, and then looks for others':
of two that come at the same time at least one sees the other, and goes elsewhere. The stakes of the dead stand for
long, since none of them may wake up; whoever comes to the same place meanwhile goes elsewhere, too. So it is with one
whose last request was not answered: it may yet be done. Who knows that nothing of its own can land any more takes its
stake away, and may come again.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from strata.checkpoint.leftovers import is_refusal
from strata.checkpoint.store import Store
from strata.errors import ObjectExists, StorageError

STAKE = "stake-"
STANDS_SECONDS = 7 * 86_400


@dataclass(slots=True)
class Stake:
    """What is known of a write: `may_land` as soon as the storage is asked to make an object of it."""

    may_land: bool = False


@asynccontextmanager
async def staked(store: Store, path: str, attempt: str) -> AsyncIterator[Stake]:
    """While this lasts the object of that path is this attempt's to write. ObjectExists if it may be another's."""
    folder, _, name = path.partition("/")
    own = f"{folder}/{STAKE}{int(time.time())}-{attempt}-{name}"
    stake = Stake()
    try:
        await store.storage.put_if_absent(store.key(own), b"")
        there = [each async for each in store.paths(folder) if each != own]
        others = [each for each in there if each == path or (is_stake(each) and each.endswith(f"-{name}"))]
        if others:
            raise ObjectExists(f"{path} may be another save's", storage=store.storage.url, key=store.key(path))
        yield stake
    except BaseException as error:
        if not stake.may_land or is_refusal(error):
            with suppress(StorageError):  # swept in time
                await store.storage.delete(store.key(own))
        raise
    await store.storage.delete(store.key(own))


def is_stake(path: str) -> bool:
    return path.partition("/")[2].startswith(STAKE)


def stands(path: str) -> bool:
    """Whether it is a stake that may still be somebody's."""
    if not is_stake(path):
        return False
    when = path.partition("/")[2].removeprefix(STAKE).partition("-")[0]
    return when.isdecimal() and time.time() - int(when) < STANDS_SECONDS
