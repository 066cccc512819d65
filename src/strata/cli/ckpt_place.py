"""How the commands of `strata ckpt` are told which checkpoints they are about."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, NamedTuple

import typer

from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.locating import Place, find_place
from strata.checkpoint.overview import LATEST, Listed, Overview, look_over
from strata.checkpoint.store import Store
from strata.errors import InvalidInput
from strata.storage.urls import open_storage

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The root that CheckpointManager was given; or a job's folder, or a checkpoint's, in it."
    ),
]
Job = Annotated[
    str | None, typer.Option("--job", help="Whose checkpoints. [STRATA_JOB_ID, or the only job that has any there]")
]
OneStep = Annotated[
    str,
    typer.Argument(
        metavar="STEP", help="A step, or the name of a checkpoint's folder; else the latest.", show_default=False
    ),
]
Steps = Annotated[
    list[str] | None,
    typer.Argument(metavar="STEP", help="Steps, or names of checkpoints' folders.", show_default=False),
]
StepOption = Annotated[str, typer.Option("--step", metavar="STEP", help="A step, or the name of a folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class Found(NamedTuple):
    """The checkpoints of the job that a URL means, and what it said itself."""

    checkpoints: Checkpoints
    place: Place

    async def overview(self, *, count_tensors: bool = False) -> Overview:
        return await look_over(self.checkpoints, count_tensors=count_tensors)

    def named(self, steps: Sequence[str]) -> list[str]:
        """Those said, or the one in the URL."""
        if self.place.folder is None:
            return list(steps)
        if any(step not in (LATEST, self.place.folder.name) for step in steps):
            raise InvalidInput(f"the URL names {self.place.folder.name} already: leave out the steps, or name the root")
        return [self.place.folder.name]

    async def one(self, step: str = LATEST) -> Listed:
        return (await self.overview()).find(*self.named([step]))


@asynccontextmanager
async def opened(url: str, job: str | None) -> AsyncIterator[Found]:
    """The environment says which job is the usual one."""
    place = await find_place(url, job, os.environ.get("STRATA_JOB_ID") or None)
    async with open_storage(place.root) as storage:
        yield Found(Checkpoints(Store(storage, place.job)), place)
