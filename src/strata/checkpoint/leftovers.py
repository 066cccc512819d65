"""What a save that fails has written goes at once: the room may be just what was missing.

Not where the commit may have been made all the same: an answer that did not come may have been a yes. And nothing of a
writer that came after, who sweeps in any case. What is left is removed by the next run.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from strata.checkpoint.attempt import Attempt
from strata.checkpoint.lineage import check_term
from strata.checkpoint.store import Store, folder_named, folders_of
from strata.errors import ObjectExists, StorageError, StrataError


@asynccontextmanager
async def giving_back(store: Store, attempt: Attempt, *, committing: bool = False) -> AsyncIterator[list[str]]:
    """Takes the paths of files whose names do not tell whose they are, and which this attempt alone writes."""
    others: list[str] = []
    try:
        yield others
    except BaseException as error:
        if is_refusal(error) or not committing:
            with suppress(StrataError):
                await give_back(store, attempt, others)
        raise


def is_refusal(error: BaseException) -> bool:
    """Whether the storage has said no to a write, for certain."""
    return isinstance(error, StorageError) and not error.retry and not isinstance(error, ObjectExists)


async def give_back(store: Store, attempt: Attempt, others: list[str]) -> None:
    """Remove what an attempt has written, unless it is committed, or another writer has taken over."""
    folders = {attempt.folder, *(folder for name in folders_of(others) if (folder := folder_named(name)))}
    names = [path for folder in folders async for path in store.paths(folder.name)]
    left = [path for path in names if path in others or f"/part-{attempt.rank}-{attempt.name}" in path]
    # Whoever takes over after this finds what was listed, and writes elsewhere.
    await check_term(store, attempt.term)
    if not any([await store.is_committed(folder) for folder in folders]):
        await store.storage.delete_many([store.key(path) for path in left])
