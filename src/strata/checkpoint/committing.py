"""The commit of a save: `metadata.json`, where none is. Before this very last write there is no checkpoint.

Whoever takes over begins a term, and who is of an older one looks before it commits. One that slept between that look
and the write may put its manifest where its successor saves the same step. Then the successor's goes into the folder
that is its term's alone, and names its files where they are. What the sleeper put is not on the line, and hollow: its
files were swept when the term began. See `Checkpoints.sweep`.
"""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from strata import __version__
from strata.checkpoint import manifest
from strata.checkpoint.attempt import Attempt
from strata.checkpoint.datapositions import merged
from strata.checkpoint.leftovers import giving_back
from strata.checkpoint.lineage import check_term
from strata.checkpoint.manifest import Metadata, Part, PartRef
from strata.checkpoint.store import Folder, Store
from strata.errors import Conflict, ObjectExists, ObjectNotFound


async def commit(
    store: Store,
    attempt: Attempt,
    parts: Sequence[Part],
    references: Sequence[PartRef],
    world_size: int = 1,
    *,
    alone: bool = True,
) -> Folder:
    """The checkpoint's manifest; gives where it is. `alone`: nobody else may put it, so that what was written may go if
    the storage refuses, and it may lie elsewhere than was said; else it may be in use already."""
    metadata = Metadata(
        manifest.FORMAT,
        store.job,
        attempt.folder.step,
        attempt.epoch,
        attempt.term.term,
        attempt.name,
        time.time(),
        world_size,
        dict(attempt.metrics),
        list(references),
        [],
        __version__,
        merged(parts, attempt.folder.step),
    )
    for folder in dict.fromkeys([attempt.folder, attempt.own_folder] if alone else [attempt.folder]):
        elsewhere = _elsewhere(folder, parts, references)
        encoded = manifest.encode_metadata(msgspec.structs.replace(metadata, references=elsewhere))
        manifest.decode_metadata(encoded, f"the checkpoint of step {folder.step}")
        await check_term(store, attempt.term)
        try:
            async with AsyncExitStack() as given_back:
                if alone:
                    others = await given_back.enter_async_context(giving_back(store, attempt, committing=True))
                    others += [attempt.bytes_path] if parts[0].kind == manifest.BYTES else []
                await store.storage.put_if_absent(store.key(folder.name, manifest.METADATA), encoded)
            return folder
        except ObjectExists:
            store.forget(folder)
            there = await store.metadata(folder)
            if there.attempt == attempt.name:  # another rank was asked to put it, too
                return folder
            if there.term >= attempt.term.term:
                break
    raise Conflict(
        f"step {attempt.folder.step} is committed already in {store.storage.url}/{store.root}: "
        "another process saves under the same job_id"
    )


async def committed_in(store: Store, attempt: Attempt) -> Folder | None:
    """Where its manifest is, if it is committed: elsewhere than was said only if that is another's."""
    for folder in dict.fromkeys([attempt.folder, attempt.own_folder]):
        store.forget(folder)
        try:
            if (await store.metadata(folder)).attempt == attempt.name:
                return folder
        except ObjectNotFound:
            return None
    return None


def _elsewhere(folder: Folder, parts: Sequence[Part], references: Sequence[PartRef]) -> list[str]:
    """Those of its files that lie in other folders: most of them an earlier save wrote."""
    files = {file.path for part in parts for file in part.files} | {each.path for each in references}
    return sorted(path for path in files if not path.startswith(f"{folder.name}/"))
