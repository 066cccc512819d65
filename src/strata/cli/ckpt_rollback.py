"""`strata ckpt rollback`: back to an older checkpoint."""

import asyncio
from typing import Annotated

import typer

from strata.checkpoint.rollback import behind, roll_back
from strata.cli.ckpt_place import AsJson, Job, Url, Yes, opened
from strata.cli.output import confirm, say, say_json


def rollback(
    url: Url,
    to: Annotated[int, typer.Option("--to", metavar="STEP", min=0, help="The step to go on from.")],
    yes: Yes = False,
    job: Job = None,
    as_json: AsJson = False,
) -> None:
    """Go back to an older checkpoint. Stop the job before; it goes on from there when it is started again. What came
    after stays, and can be loaded by its step, but is never the latest again."""
    where, left = asyncio.run(_look(url, to, job))
    steps = ", ".join(map(str, left))
    if left and not yes:
        confirm(f"Go back to step {to} in {where}, and leave {steps} behind?")
    if left:
        left = asyncio.run(_go(url, to, job))
    if as_json:
        say_json({"url": where, "latest": to, "left_behind": left})
    elif left:
        say(f"step {to} is the latest now; left behind: {', '.join(map(str, left))}")
    else:
        say(f"step {to} is the latest in {where}: there is nothing to go back from")


async def _look(url: str, step: int, job: str | None) -> tuple[str, list[int]]:
    async with opened(url, job) as found:
        return found.checkpoints.where, await behind(found.checkpoints, step)


async def _go(url: str, step: int, job: str | None) -> list[int]:
    """What was left behind: a job that still ran may have saved since it was asked."""
    async with opened(url, job) as found:
        return await roll_back(found.checkpoints, step)
