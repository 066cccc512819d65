"""`strata ckpt cp`: checkpoints from one root, storage or job to another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Annotated

import typer

from strata.checkpoint.copying import Copied, copy_checkpoint
from strata.checkpoint.locating import pointed_at
from strata.checkpoint.overview import LATEST, Listed
from strata.checkpoint.store import Store
from strata.cli.ckpt_place import Found, Job, StepOption, opened
from strata.cli.drawing import progress_bar
from strata.cli.output import say
from strata.errors import InvalidInput, StrataError
from strata.storage.copy import OPTIONS
from strata.storage.urls import open_storage
from strata.texts import readable_bytes


def cp(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A root, or the folder of a job or of a checkpoint in it.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Another root, or the folder of a job in it.")],
    step: StepOption = LATEST,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every checkpoint that can be gone back to.")] = False,
    job: Job = None,
    to_job: Annotated[
        str | None, typer.Option("--to-job", help="The job of the copy, if not that of the source.")
    ] = None,
) -> None:
    """Copy a checkpoint, with the files it refers to, between any two storages.

    Every byte is verified on the way. A job that runs at the target is not disturbed.

    A copy appears whole or not at all. To repeat an interrupted one, run it again: what is there is not copied twice.
    """
    if target.startswith("memory://"):
        raise InvalidInput("memory:// ends with this command, and the copy with it: name another target")
    if everything and step != LATEST:
        raise InvalidInput("give --step or --all, not both")
    asyncio.run(_cp(source, target, step, everything, job, to_job))


async def _cp(source: str, target: str, step: str, everything: bool, job: str | None, to_job: str | None) -> None:
    async with opened(source, job) as found, target_store(target, to_job, found.place.job) as goal:
        chosen = await _chosen(found, step, everything)
        with progress_bar() as progress:
            bar = progress.add_task("copying", total=sum(each.stored_bytes for each in chosen), objects="")
            told: list[str] = []
            try:
                for number, each in enumerate(chosen, 1):
                    progress.update(bar, objects=f"step {each.label}, {number} of {len(chosen)}")
                    began = perf_counter()
                    made = await copy_checkpoint(
                        found.checkpoints.store, each.folder, goal, lambda count: progress.advance(bar, count)
                    )
                    told.append(_told(each, made, perf_counter() - began))
                    if made.was_there:
                        progress.advance(bar, made.bytes)
            except (StrataError, asyncio.CancelledError, KeyboardInterrupt):
                for line in told:
                    say(line, err=True)
                raise
        where = f"{goal.storage.url}/{goal.root}"
    for line in told:
        say(line)
    say(f"in {where}")


async def _chosen(found: Found, step: str, everything: bool) -> list[Listed]:
    if not everything or found.place.folder is not None:
        return [await found.one(step)]
    line = (await found.overview()).line
    return line or [await found.one()]


@asynccontextmanager
async def target_store(url: str, job: str | None, otherwise: str) -> AsyncIterator[Store]:
    """Where to write: a root, which need not exist, or the folder of a job."""
    place = await pointed_at(url)
    if place.folder is not None:
        raise InvalidInput(f"{url} is one checkpoint: name the root, or a job's folder")
    if job is not None and place.job and place.job != job:
        raise InvalidInput(f"{url} is of job {place.job}, and not of {job}: name the root, or leave out the job")
    async with open_storage(place.root, options=OPTIONS) as storage:
        yield Store(storage, job or place.job or otherwise)


def _told(listed: Listed, made: Copied, seconds: float) -> str:
    if made.was_there:
        return f"step {listed.label} is there already"
    speed = f" ({readable_bytes(made.bytes / seconds)}/s)" if seconds >= 0.1 else ""
    return f"copied step {listed.label}: {readable_bytes(made.bytes)} in {seconds:.1f} s{speed}"
