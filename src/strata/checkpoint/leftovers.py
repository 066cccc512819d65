"""What a save that fails has written goes at once: the room may be just what was missing.

Not where the commit may have been made all the same: an answer that did not come may have been a yes. And nothing of a
writer that came after, who sweeps in any case. What is left is removed by the next run.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from strata.checkpoint.lineage import check_term
from strata.checkpoint.store import Store
from strata.errors import ObjectExists, StorageError, StrataError

if TYPE_CHECKING:
    from strata.checkpoint.saving import Attempt


@asynccontextmanager
async def giving_back(store: Store, attempt: "Attempt", *, committing: bool = False) -> AsyncIterator[list[str]]:
    """Takes the paths of files whose names do not tell whose they are, once they are this attempt's."""
    written: list[str] = []
    try:
        yield written
    except BaseException as error:
        is_refused = isinstance(error, StorageError) and not error.retry and not isinstance(error, ObjectExists)
        if is_refused or not committing:
            with suppress(StrataError):
                await _give_back(store, attempt, written)
        raise


async def _give_back(store: Store, attempt: "Attempt", written: list[str]) -> None:
    await check_term(store, attempt.term)
    if await store.is_committed(attempt.folder):
        return
    left = [path async for path in store.paths(attempt.folder.name) if path.startswith(attempt.stem)]
    await store.storage.delete_many([store.key(path) for path in (*left, *written)])
