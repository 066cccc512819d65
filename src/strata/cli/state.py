"""`strata state`: a coordinator's journal on the disk, with no coordinator needed."""

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.output import say, say_json
from strata.cli.remote import Json
from strata.config import Config

app = typer.Typer(no_args_is_help=True, help="Look at a coordinator's state on disk, save it and put it back.")

StateDir = Annotated[Path | None, typer.Option(help="The coordinator's folder. [as the coordinator would find it]")]


def _folder(said: Path | None) -> Path:
    return Path(Config({"coordinator.state_dir": said}, os.environ)["coordinator.state_dir"])


@app.command()
def show(
    state_dir: StateDir = None,
    job: Annotated[str | None, typer.Option(help="Print this job's whole state.")] = None,
    as_json: Json = False,
) -> None:
    """What a coordinator would know if it started now. One that runs is not disturbed."""
    from strata.coordinator import journal
    from strata.coordinator.backups import Reading

    with closing(journal.opened_for_reading(_folder(state_dir))) as database:
        told = Reading(database).summary(job)
    if as_json or job is not None:
        say_json(told, default=str)
        return
    say(f"term {told['term']}, {told['records']} records; {told['kept_records']} of them are kept")
    snapshot = told["snapshot_index"]
    say("no snapshot yet" if snapshot is None else f"the latest snapshot is at record {snapshot}")
    say(f"digest {told['digest']}")
    for each in told["jobs"]:
        say(
            f"job {each['job_id']}: {each['workers']} workers, generation {each['generation']}, "
            f"{each['datasets']} datasets, {each['checkpoints']} checkpoints"
            + ("" if each["latest_step"] is None else f", the latest of step {each['latest_step']}")
        )


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    state_dir: StateDir = None,
) -> None:
    """Copy the journal to one file, as it is at one instant, also while a coordinator runs."""
    from strata.coordinator import backups

    backups.backup(_folder(state_dir), target)
    say(f"{target}: {target.stat().st_size:,} bytes")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")],
    state_dir: StateDir = None,
) -> None:
    """Put a backup where a coordinator will find it. The folder must not hold a journal."""
    from strata.coordinator import backups

    folder = _folder(state_dir)
    backups.restore(source, folder)
    say(f"restored to {folder}: start a coordinator with --state-dir {folder}")


@app.command()
def salvage(
    state_dir: StateDir = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without this, nothing is changed.")] = False,
) -> None:
    """Go on with the records of a damaged journal that can still be read. Without --yes, only say what would be lost.

    If a backup has more of the records, restore it instead. Acknowledged records that cannot be read are lost for good:
    workers register again and go on from their latest checkpoint. The damaged files are kept in a folder beside the
    journal.
    """
    from strata.coordinator.salvage import salvage

    folder = _folder(state_dir)
    left = salvage(folder, carry_out=yes)
    lost = left.acknowledged - left.records
    say(left.damage)
    say(f"{left.records:,} records can be read")
    if lost:
        lost_ones = f"from index {left.records} to {left.acknowledged - 1}"
        say(f"at least {lost:,} acknowledged records cannot be read: {lost_ones}")
    else:
        say("it is not known how many acknowledged records followed them")
    if left.aside is None:
        say("nothing was changed: with --yes, the records that can be read become the journal")
    else:
        say(f"the journal now holds the records that could be read, and the damaged files are in {left.aside}")
        say(f"start a coordinator with --state-dir {folder}")
