"""`strata state`: a coordinator's journal on the disk, with no coordinator needed."""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.remote import Json

app = typer.Typer(no_args_is_help=True, help="Look at a coordinator's state on disk, save it and put it back.")

StateDir = Annotated[Path, typer.Option(help="The coordinator's folder.")]


@app.command()
def show(
    state_dir: StateDir = Path("strata-state"),
    job: Annotated[str | None, typer.Option(help="Print this job's whole state.")] = None,
    as_json: Json = False,
) -> None:
    """What a coordinator would know if it started now. One that runs is not disturbed."""
    from strata.coordinator import journal
    from strata.coordinator.backups import Reading

    with closing(journal.opened_for_reading(state_dir)) as database:
        told = Reading(database).summary(job)
    if as_json or job is not None:
        typer.echo(json.dumps(told, indent=2, default=str))
        return
    typer.echo(f"term {told['term']}, {told['records']} records; {told['kept_records']} of them are kept")
    snapshot = told["snapshot_index"]
    typer.echo("no snapshot yet" if snapshot is None else f"the latest snapshot is at record {snapshot}")
    typer.echo(f"digest {told['digest']}")
    for each in told["jobs"]:
        typer.echo(
            f"job {each['job_id']}: {each['workers']} workers, generation {each['generation']}, "
            f"{each['datasets']} datasets, {each['checkpoints']} checkpoints, latest step {each['latest_step']}"
        )


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    state_dir: StateDir = Path("strata-state"),
) -> None:
    """Copy the journal to one file, as it is at one instant, also while a coordinator runs."""
    from strata.coordinator import backups

    backups.backup(state_dir, target)
    typer.echo(f"{target}: {target.stat().st_size:,} bytes")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")],
    state_dir: StateDir = Path("strata-state"),
) -> None:
    """Put a backup where a coordinator will find it. The folder must not hold a journal."""
    from strata.coordinator import backups

    backups.restore(source, state_dir)
    typer.echo(f"restored to {state_dir}: start a coordinator with --state-dir {state_dir}")
