"""What becomes of a storage when checkpoints are removed by hand: what goes, what stays, and for whose sake.

The law: not the last that could be loaded, and none that is pinned, unless it is forced.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.overview import Listed, Overview
from strata.checkpoint.readers import being_read
from strata.checkpoint.store import folders_of
from strata.errors import Refused


@dataclass(slots=True)
class Removal:
    """Of some checkpoints. `kept` says of each file that stays which checkpoints refer to it."""

    doomed: list[Listed]
    freed_bytes: int = 0
    kept_bytes: int = 0
    kept: dict[str, list[str]] = field(default_factory=dict)
    being_read: list[str] = field(default_factory=list)
    """Folders whose files stay, until a run of the job removes them."""
    latest_after: str | None = None


async def plan_removal(
    checkpoints: Checkpoints, overview: Overview, doomed: Iterable[Listed], *, force: bool = False
) -> Removal:
    """Changes nothing. Refused for what must not be removed."""
    chosen = list({each.folder: each for each in doomed}.values())
    gone = {each.folder for each in chosen}
    left = [each for each in overview.checkpoints if each.folder not in gone]
    if not force:
        _check(overview, chosen, left)
    line = [each.label for each in left if each.on_line]
    plan = Removal(chosen, latest_after=line[-1] if line else None)
    referrers = _referrers(left)
    readers = await being_read(checkpoints.store)
    plan.being_read = [each.label for each in chosen if each.folder.name in readers]
    staying = {each.folder.name for each in left}
    for name in _touched(chosen) - staying:
        prefix = len(checkpoints.store.root) + 1
        async for entry in checkpoints.store.storage.list_all(checkpoints.store.key(name)):
            path = entry.path[prefix:]
            if path in referrers:
                plan.kept[path] = referrers[path]
                plan.kept_bytes += entry.size
            elif name not in readers:
                plan.freed_bytes += entry.size
    return plan


def _check(overview: Overview, chosen: Sequence[Listed], left: Sequence[Listed]) -> None:
    pinned = [each.label for each in chosen if each.is_pinned]
    if pinned:
        raise Refused(f"step {', '.join(pinned)} is pinned: unpin it first, or force it")
    if overview.lineage_damage:
        raise Refused(f"{overview.lineage_damage}. Which checkpoint is the last good one is not known: force it")
    loses = any(each.on_line for each in chosen)
    if loses and not any(each.on_line and not each.damage for each in left):
        raise Refused(
            f"nothing that could be loaded would be left in {overview.where}: force it, if that is what you want"
        )


def _touched(chosen: Iterable[Listed]) -> set[str]:
    """Their folders, and those of files that may have been kept for them alone."""
    names = set()
    for each in chosen:
        names |= {each.folder.name, *folders_of(each.metadata.references if each.metadata else ())}
    return names


def _referrers(left: Iterable[Listed]) -> dict[str, list[str]]:
    """Of each file outside of its own folder, which checkpoints it is a part of."""
    found: dict[str, list[str]] = {}
    for each in left:
        for path in each.metadata.references if each.metadata else ():
            found.setdefault(path, []).append(each.label)
    return found
