"""`strata ckpt rollback`: back to an older checkpoint."""

import asyncio
from typing import Annotated

import typer

from strata.checkpoint.rollback import behind, roll_back
from strata.cli.ckpt_place import Job, Url, Yes, opened
from strata.texts import printable


def rollback(
    url: Url,
    to: Annotated[int, typer.Option("--to", metavar="STEP", min=0, help="The step to go on from.")],
    yes: Yes = False,
    job: Job = None,
) -> None:
    """Go back to an older checkpoint. Stop the job before; it goes on from there when it is started again. What came
    after stays, and can be loaded by its step, but is never the latest again."""
    where, left = asyncio.run(_look(url, to, job))
    if not left:
        typer.echo(f"step {to} is the latest in {printable(where)}: there is nothing to go back from")
        return
    steps = ", ".join(map(str, left))
    if not yes:
        typer.confirm(f"Go back to step {to} in {printable(where)}, and leave {steps} behind?", abort=True, err=True)
    asyncio.run(_go(url, to, job))
    typer.echo(f"step {to} is the latest now; left behind: {steps}")


async def _look(url: str, step: int, job: str | None) -> tuple[str, list[int]]:
    async with opened(url, job) as found:
        return found.checkpoints.where, await behind(found.checkpoints, step)


async def _go(url: str, step: int, job: str | None) -> None:
    async with opened(url, job) as found:
        await roll_back(found.checkpoints, step)
