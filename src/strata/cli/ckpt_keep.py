"""`strata ckpt rm`, `pin` and `unpin`: what stays, and what goes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.removal import Removal, plan_removal
from strata.checkpoint.store import Folder
from strata.cli.ckpt_place import Found, Job, Steps, Url, Yes, opened
from strata.cli.output import confirm, say
from strata.errors import InvalidInput
from strata.texts import counted, readable_bytes


def rm(
    url: Url,
    steps: Steps = None,
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also those that are pinned, and the last that could be loaded.")
    ] = False,
    job: Job = None,
) -> None:
    """Remove checkpoints. Files that other checkpoints refer to stay."""
    named = list(steps or ())
    where, plan = asyncio.run(_rm(url, named, force, job, really=False))
    for line in _explained(plan):
        say(line, err=True)
    if not yes:
        confirm(f"Remove {_what(plan)} from {where}?")
    exact = [each.folder.name for each in plan.doomed]  # and no other, even if there is a newer one by now
    where, plan = asyncio.run(_rm(url, exact, force, job, really=True))
    say(f"removed {_what(plan)}")


async def _rm(url: str, steps: list[str], force: bool, job: str | None, *, really: bool) -> tuple[str, Removal]:
    async with opened(url, job) as found:
        overview = await found.overview()
        doomed = [overview.find(each) for each in _named(found, steps)]
        plan = await plan_removal(found.checkpoints, overview, doomed, force=force)
        if really:
            await found.checkpoints.delete(each.folder for each in plan.doomed)
        return overview.where, plan


def _what(plan: Removal) -> str:
    labels = [each.label for each in plan.doomed]
    steps = f"step {labels[0]}" if len(labels) == 1 else f"steps {', '.join(labels)}"
    return f"{steps} ({readable_bytes(plan.freed_bytes)})"


def _explained(plan: Removal) -> list[str]:
    """What is not removed, and what removing changes."""
    told = []
    if plan.kept:
        others = list(dict.fromkeys(label for labels in plan.kept.values() for label in labels))
        refer = f"step {others[0]} refers" if len(others) == 1 else f"steps {', '.join(others)} refer"
        told.append(f"{readable_bytes(plan.kept_bytes)} in {counted(len(plan.kept), 'file')} stay: {refer} to them")
    if plan.being_read:
        told.append(
            f"somebody reads step {', '.join(plan.being_read)} now: its files stay until the next run of the job starts"
        )
    if any(each.is_latest for each in plan.doomed):
        after = f"step {plan.latest_after} is then the latest"
        told.append("nothing is left to go on from then" if plan.latest_after is None else after)
    return told


def pin(url: Url, steps: Steps = None, job: Job = None) -> None:
    """Keep checkpoints whatever retention says."""
    for label in asyncio.run(_each(url, list(steps or ()), job, Checkpoints.pin)):
        say(f"step {label} is pinned: it stays until it is unpinned or removed")


def unpin(url: Url, steps: Steps = None, job: Job = None) -> None:
    """Let retention decide on checkpoints again."""
    for label in asyncio.run(_each(url, list(steps or ()), job, Checkpoints.unpin)):
        say(f"step {label} is not pinned")


async def _each(
    url: str, steps: list[str], job: str | None, act: Callable[[Checkpoints, Folder], Awaitable[None]]
) -> list[str]:
    """Do it to each, and give what people call them."""
    async with opened(url, job) as found:
        overview = await found.overview()
        chosen = [overview.find(each) for each in _named(found, steps)]
        for each in chosen:
            await act(found.checkpoints, each.folder)
        return [each.label for each in chosen]


def _named(found: Found, steps: list[str]) -> list[str]:
    named = found.named(steps)
    if not named:
        raise InvalidInput("which steps? Name at least one, or `latest`")
    return named
