"""`strata data register`, `ls` and `unregister`: which datasets a job has."""

from contextlib import nullcontext
from typing import Annotated, Any

import msgspec
import typer

from strata.cli.ckpt_place import Yes
from strata.cli.data_place import Dataset, Format, Job, Paths, counting, job_named, one_or_all, registry_at
from strata.cli.drawing import GAP, Text, fitted, meter, open_console, percent
from strata.cli.output import confirm, say, say_json
from strata.cli.remote import Json, Url
from strata.core.paths import shown
from strata.data.paths import read
from strata.data.registered import RegisteredDataset, default_shard_size
from strata.errors import Conflict, NotFound
from strata.sharding import Strategy
from strata.texts import counted

BAR = 8
LEAST_PATH = 30
LEAST_ID = 8


def register(
    dataset: Dataset,
    paths: Paths,
    format: Format,
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=1, help="How many there are. Otherwise they are counted in the files, here."),
    ] = None,
    shard_size: Annotated[
        int | None,
        typer.Option("--shard-size", min=1, help="Samples of a shard (a thousandth of all, at most 10,000)."),
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Another order in each epoch.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="What the order and the shares follow from.")] = 0,
    order: Annotated[str, typer.Option("--order", help="elastic or affinity.")] = "elastic",
    strategy: Annotated[str, typer.Option("--strategy", help="slots or ring: who owns which shard.")] = "slots",
    replace: Annotated[
        bool, typer.Option("--replace", help="If it is registered and differs: a new version, at epoch 0.")
    ] = False,
    job: Job = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make a dataset known to a job. Again with the same values changes nothing.

    The path is what the workers will see. With --samples nothing need be there on this machine.
    """
    with registry_at(url, job) as registry:
        try:
            with nullcontext() if samples else counting() as progress:
                made = registry.register(
                    dataset,
                    one_or_all(paths),
                    format,
                    samples,
                    shard_size,
                    shuffle,
                    seed,
                    strategy=_strategy(strategy),
                    order=order,
                    replace=replace,
                    progress=progress,
                )
        except Conflict as error:
            raise Conflict(f"{error}. On the command line that is --replace") from None
        except NotFound as error:
            raise NotFound(f"{error} (--samples)") from None
    size = shard_size or default_shard_size(made.total_samples)
    shards = -(-made.total_samples // size)
    if as_json:
        say_json(msgspec.to_builtins(made) | {"shard_size": size, "shard_count": shards})
        return
    say(
        f"{dataset} is registered: version {made.version}, epoch {made.epoch}, {counted(made.total_samples, 'sample')} "
        f"in {counted(shards, 'shard')} of {size:,}"
    )


def _strategy(word: str) -> Strategy:
    if word not in ("slots", "ring"):
        raise typer.BadParameter(f"{word!r} is neither slots nor ring", param_hint="--strategy")
    return "slots" if word == "slots" else "ring"


# -- ls --------------------------------------------------------------------------------------------------------------


def ls(job: Job = None, url: Url = None, as_json: Json = False) -> None:
    """List the datasets of a job, and how far each is in its epoch, as far as anybody reported."""
    with registry_at(url, job) as registry:
        found = registry.list()
        if as_json:
            say_json([document(each) for each in found])
        elif found:
            draw_table(found)
        else:
            say(f"job {job_named(job)} has no datasets: see `strata data register`")


def document(dataset: RegisteredDataset) -> dict[str, Any]:
    """A dataset for programs. Its path is a list where it is several."""
    plain: dict[str, Any] = msgspec.to_builtins(dataset)
    return plain | {"shard_count": dataset.shard_count, "path": read(dataset.path)}


def told_path(path: str) -> str:
    """In one line, without what may be secret."""
    first, *others = shown(path).split("\n")
    return first + (f" and {len(others):,} more" if others else "")


def draw_table(found: list[RegisteredDataset]) -> None:
    """Paths behind the numbers, or below them where that leaves no room; there also ids that are too long."""
    console = open_console()
    heads = ["dataset", "version>", "samples>", "shards>", "epoch>", "consumed", "format"]
    rows = [[Text(head.rstrip(">"), "bold") for head in heads], *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = console.width - sum(widths) - GAP * len(widths)
    widths[0] = max(LEAST_ID, min(widths[0], widths[0] + left + GAP))
    if left >= LEAST_PATH:
        heads, widths = [*heads, "path"], [*widths, left]
        rows = [
            [*rows[0], Text("path", "bold")],
            *([*row, _path(each)] for row, each in zip(rows[1:], found, strict=True)),
        ]
    for row, each in zip(rows, [None, *found], strict=True):
        cells = zip(row, widths, heads, strict=True)
        line = Text(" " * GAP).join(
            [_padded(cell, width, flush_right=head.endswith(">")) for cell, width, head in cells]
        )
        line.rstrip()
        console.print(line, soft_wrap=True)
        if each is not None and left < LEAST_PATH:
            name = f"{each.dataset_id}: " if len(each.dataset_id) > widths[0] else ""
            console.print(Text(f"  {name}{told_path(each.path)}", "dim"), soft_wrap=True)


def _path(each: RegisteredDataset) -> Text:
    return Text(told_path(each.path))


def _padded(cell: Text, width: int, *, flush_right: bool) -> Text:
    """Of what is too long, the end."""
    if len(cell) > width:
        return Text(fitted(cell.plain, width), cell.style)
    space = " " * (width - len(cell))
    return Text(space).append_text(cell) if flush_right else Text().append_text(cell).append(space)


def _row(each: RegisteredDataset) -> list[Text]:
    words = [each.dataset_id, str(each.version), f"{each.total_samples:,}", f"{each.shard_count:,}"]
    share = percent(each.consumed_samples, each.total_samples)
    return [
        *map(Text, [*words, str(each.epoch)]),
        meter(each.consumed_samples / max(1, each.total_samples), BAR).append(f" {share:>6}", "default"),
        Text(each.format),
    ]


# -- unregister ------------------------------------------------------------------------------------------------------


def unregister(dataset: Dataset, yes: Yes = False, job: Job = None, url: Url = None) -> None:
    """Take a dataset out of a job. What is known of its epochs goes with it; its files stay."""
    with registry_at(url, job) as registry:
        known = {each.dataset_id: each for each in registry.list()}
        there = known.get(dataset)
        if there is None:
            others = f"it has {', '.join(known)}" if known else "it has none"
            raise NotFound(f"no dataset {dataset!r} in job {job_named(job)!r}: {others}")
        if not yes:
            share = percent(there.consumed_samples, there.total_samples)
            what = f"{dataset}, version {there.version}, which is in epoch {there.epoch} ({share} consumed)"
            confirm(f"Unregister {what}?")
        registry.unregister(dataset, there.version)  # and no other, if it was replaced meanwhile
    say(f"{dataset} is not registered any more: version {there.version} is gone")
