"""The manifest of what is decided, put by whoever is asked to: everything it says follows from the decision and the
parts, so it does not matter who, or how often.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from strata.checkpoint.attempt import Attempt
from strata.checkpoint.committing import commit
from strata.checkpoint.lineage import Term, is_attempt_name, is_of, read_lineage, superseded_by
from strata.checkpoint.manifest import Metadata, PartRef
from strata.checkpoint.store import Folder, Store, folder_named
from strata.errors import CheckpointDamaged, ObjectNotFound


class Decision(NamedTuple):
    """All that is known of an attempt whose parts are durable. `metrics` are those that any rank gave, as text; `nodes`
    the machines that the parts of ranks were written on; `url` the storage, as a rank opened it."""

    place: str
    epoch: int
    metrics: Mapping[str, str]
    parts: Sequence[PartRef]
    size: int
    nodes: Mapping[int, str] = {}
    url: str = ""


def place_of(folder: Folder, metadata: Metadata) -> str:
    """How ranks tell each other, and the coordinator, where a checkpoint is."""
    return f"{folder.name} {metadata.attempt}"


def placed(place: str) -> tuple[Folder, str]:
    """Its folder, and the name of the attempt."""
    name, _, attempt = place.partition(" ")
    folder = folder_named(name)
    if folder is None or not is_attempt_name(attempt):
        raise CheckpointDamaged(f"{place!r} is no place of a checkpoint")
    return folder, attempt


async def term_of(store: Store, attempt: str, known: Term | None = None) -> Term:
    """The term that an attempt belongs to, which must be the newest there is; Superseded if it is not."""
    if known is not None and is_of(known, attempt):
        return known
    newest = (await read_lineage(store)).newest
    if newest is None or not is_of(newest, attempt):
        raise superseded_by(store, newest)
    return newest


async def missing(store: Store, places: Sequence[str]) -> list[str]:
    """Those of these committed checkpoints that are not in the storage any more. One whose manifest cannot be read is
    there."""
    there, gone = set(await store.folders()), []
    for place in places:
        with suppress(ObjectNotFound, CheckpointDamaged):
            folder, name = placed(place)
            if folder not in there or (await store.metadata(folder)).attempt != name:
                gone.append(place)
    return gone


async def finish(store: Store, decision: Decision) -> None:
    """Commit it. One that is committed already stays as it is."""
    folder, name = placed(decision.place)
    store.forget(folder)
    with suppress(ObjectNotFound):
        if (await store.metadata(folder)).attempt == name:
            return
    term = await term_of(store, name)
    parts = await store.parts_of(decision.parts)
    metrics = {key: float(value) for key, value in decision.metrics.items()}
    attempt = Attempt(folder, term, name, decision.epoch, metrics, parts[0].rank)
    await commit(store, attempt, parts, decision.parts, decision.size, alone=False)
