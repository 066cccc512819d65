"""`strata data show`: a dataset, the state of its epoch, and who owns which of its shards, as a strip for each rank."""

import asyncio
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from strata.cli.data_jobs import document, told_path
from strata.cli.data_place import Dataset, Job, asked, unproven_of
from strata.cli.data_strips import SHADES, cell_edges, strip, strip_of
from strata.cli.drawing import GAP, Terminal, Text, fitted, meter, new_table, open_console, percent
from strata.cli.output import say_json
from strata.cli.remote import Json, Url
from strata.core.consumption import Consumption
from strata.data.ledger import TRIES, Holder, Ledger, read_ledger
from strata.errors import NotFound, Refused
from strata.texts import counted, some_of
from strata.wire.asking import Asker

AT_ONCE = 16
WIDTH = 80
"""On anything wider, strips would be no easier to read."""
LEAST_STRIP = 16
WORKER = 20


class Owner(NamedTuple):
    """A rank and its shards in the order of the epoch; None where they are too many to be told."""

    holder: Holder
    shards: NDArray[np.int64] | None


def show(
    dataset: Dataset,
    epoch: Annotated[
        int | None, typer.Option("--epoch", min=0, help="Tell the order in which each rank reads in it.")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", min=1, max=10_000, help="Show at most so many ranks.")] = 32,
    job: Job = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a dataset: the state of its epoch, and who owns which shards, drawn as a strip for each rank.

    Whose a shard is does not depend on the epoch; in which order a rank reads its shards does.
    """
    ledger, owners = asked(url, job, lambda asker: _owners(asker, dataset, epoch, ranks))
    if as_json:
        say_json(_document(ledger, owners, epoch))
        return
    console = open_console()
    _tell_dataset(console, ledger)
    _tell_epochs(console, ledger)
    console.print()
    _tell_owners(console, ledger, owners, epoch)


async def _owners(asker: Asker, dataset: str, epoch: int | None, most: int) -> tuple[Ledger, list[Owner]]:
    """The ledger, and the shards of the first ranks: all in one generation."""
    lanes = asyncio.Semaphore(AT_ONCE)

    async def owner(holder: Holder, ledger: Ledger) -> Owner | None:
        asked_epoch = ledger.dataset.epoch if epoch is None else epoch
        async with lanes:
            try:
                answer = await asker.call("GetShards", dataset_id=dataset, rank=holder.rank, epoch=asked_epoch)
            except Refused:
                return Owner(holder, None)
            except NotFound:  # it drains, or it left just now
                return Owner(holder, np.zeros(0, np.int64)) if not holder.shards else None
        same = (answer.version, answer.generation) == (ledger.dataset.version, ledger.generation)
        return Owner(holder, np.array(answer.shard_ids, np.int64)) if same else None

    for _ in range(TRIES):
        ledger = await read_ledger(asker, dataset)
        found = await asyncio.gather(*(owner(each, ledger) for each in ledger.holders[:most]))
        owners = [each for each in found if each is not None]
        if len(owners) == len(found):
            return ledger, owners
    raise Refused(f"workers come and go faster than the shards of dataset {dataset!r} can be read: try again")


# -- for programs ----------------------------------------------------------------------------------------------------


def _document(ledger: Ledger, owners: list[Owner], epoch: int | None) -> dict[str, Any]:
    per_rank = ledger.dataset.order == "affinity"
    return {
        "dataset": document(ledger.dataset),
        "generation": ledger.generation,
        "consumed": list(ledger.consumed),
        "reissued_samples": ledger.reissued,
        "finished": [each._asdict() for each in ledger.finished],
        "unproven_epochs": ledger.unproven,
        "ranks": len(ledger.holders),
        "order_of_epoch": ledger.dataset.epoch if epoch is None else epoch,
        "owners": [
            each.holder._asdict()
            | {
                "samples": _samples(ledger, each),
                "consumed_samples": _consumed(ledger, each) if per_rank else None,
                "shard_ids": None if each.shards is None else each.shards.tolist(),
            }
            for each in owners
        ],
    }


def _samples(ledger: Ledger, owner: Owner) -> int | None:
    return None if owner.shards is None else int(ledger.dataset.layout.sizes(owner.shards).sum())


def _consumed(ledger: Ledger, owner: Owner) -> int | None:
    """Of its shards, by whomever. In the affinity order a shard's places are its samples'."""
    if owner.shards is None:
        return None
    layout = ledger.dataset.layout
    starts = owner.shards * layout.shard_size
    return int(Consumption(ledger.consumed).within(starts, starts + layout.sizes(owner.shards)).sum())


# -- for people ------------------------------------------------------------------------------------------------------


def _tell_dataset(console: Terminal, ledger: Ledger) -> None:
    known = ledger.dataset
    samples, shards = counted(known.total_samples, "sample"), counted(known.shard_count, "shard")
    console.print(Text(known.dataset_id, "bold").append(f", version {known.version}", "default"))
    console.print(f"  {samples} in {shards} of {known.shard_size:,}")
    shuffled = f"shuffled with seed {known.seed}" if known.shuffle else "not shuffled"
    console.print(f"  {shuffled}, {known.order} order, shares by {known.strategy.removesuffix('-v1')}")
    console.print(Text(f"  {known.format}: {told_path(known.path)}"), soft_wrap=True)


def _tell_epochs(console: Terminal, ledger: Ledger) -> None:
    known, width = ledger.dataset, _width(console)
    before = _finished(ledger)
    if before:
        console.print(Text(f"  {before}"), soft_wrap=True)
    told = f" {percent(known.consumed_samples, known.total_samples)} of epoch {known.epoch} is consumed"
    line = Text("  ").append_text(meter(known.consumed_samples / max(1, known.total_samples), width - len(told) - 2))
    console.print(line.append(told, "default"))
    left = known.total_samples - known.consumed_samples
    again = f"; {counted(ledger.reissued, 'sample')} given out again after a loss" if ledger.reissued else ""
    damaged = f", {known.left_out_samples:,} of them damaged and left out" if known.left_out_samples else ""
    console.print(f"  {known.consumed_samples:,} reported{damaged}, {left:,} left{again}", soft_wrap=True)


def _finished(ledger: Ledger) -> str:
    over = sorted([*(each.epoch for each in ledger.finished), *ledger.unheard])
    if not over:
        return ""
    which = f"epoch {over[0]}" if len(over) == 1 else f"epochs {over[0]} to {over[-1]}"
    if ledger.unproven:
        return f"{which} over: not proven: {unproven_of(ledger)}"
    tails = ", but for tails that were dropped" if any(each.dropped for each in ledger.finished) else ""
    return f"{which} over: every sample once{tails}"


def _tell_owners(console: Terminal, ledger: Ledger, owners: list[Owner], epoch: int | None) -> None:
    known = ledger.dataset
    if not owners:
        console.print("nobody owns a shard yet: shards divide over ranks once a worker has joined the job")
        return
    _print_strips(console, ledger, owners)
    hidden = len(ledger.holders) - len(owners)
    if hidden:
        console.print(f"and {counted(hidden, 'more rank')}: see --ranks", style="dim")
    console.print(_balance(ledger.holders), soft_wrap=True)
    order = known.epoch if epoch is None else epoch
    for each in owners if epoch is not None else []:
        if each.shards is not None and len(each.shards):
            console.print(f"rank {each.holder.rank} reads in epoch {order}: {some_of(each.shards.tolist(), 10)}")
    if known.order == "elastic":
        note = (
            "In the elastic order the loader takes each batch from all shards, for all ranks: these shares are what "
            "get_shard and get_assignments give."
        )
        console.print(Text(note, "dim"), soft_wrap=not console.is_terminal)


def _print_strips(console: Terminal, ledger: Ledger, owners: list[Owner]) -> None:
    known, per_rank = ledger.dataset, ledger.dataset.order == "affinity"
    giving = any(each.holder.giving_up for each in owners)
    heads = ["rank>", "worker", "shards>", "samples>", *["consumed>"] * per_rank, *["gives up>"] * giving]
    rows = [_numbers(ledger, each, per_rank, giving) for each in owners]
    widths = [max(len(head.rstrip(">")), *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    width = max(LEAST_STRIP, _width(console) - sum(widths) - GAP * len(widths))
    line = f"shards 0 to {known.shard_count - 1:,}"
    table = new_table(*heads, line)
    for row, each in zip(rows, owners, strict=True):
        strip_ = "too many to draw" if each.shards is None else strip_of(each.shards, known.shard_count, width)
        table.add_row(*row, Text(strip_, "cyan", no_wrap=True))
    if per_rank:
        share = percent(known.consumed_samples, known.total_samples)
        numbers = ["", "consumed", "", f"{known.consumed_samples:,}", share, *[""] * giving]
        table.add_row(*numbers, Text(_consumed_strip(ledger, width), "green", no_wrap=True))
    console.print(_narrow(table))
    each_cell = -(-known.shard_count // width)
    if each_cell > 1:
        console.print(f"a sign is about {each_cell:,} shards: {SHADES[0]} none of them, {SHADES[-1]} all", style="dim")


def _consumed_strip(ledger: Ledger, width: int) -> str:
    """Under the strips of the ranks, cell by cell: in the affinity order shards have their places on the same line."""
    layout = ledger.dataset.layout
    edges = np.minimum(cell_edges(layout.shard_count, width) * layout.shard_size, layout.total_samples)
    return strip(Consumption(ledger.consumed).within(edges[:-1], edges[1:]), edges)


def _narrow(table: Table) -> Table:
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table


def _numbers(ledger: Ledger, owner: Owner, per_rank: bool, giving: bool) -> list[str]:
    holder, samples = owner.holder, _samples(ledger, owner)
    row = [
        str(holder.rank),
        fitted(holder.worker, WORKER) if holder.worker else "nobody yet",
        f"{holder.shards:,}",
        "" if samples is None else f"{samples:,}",
    ]
    if per_rank:
        consumed = _consumed(ledger, owner)
        row.append(percent(consumed, samples) if samples and consumed is not None else "")
    if giving:
        row.append(f"{holder.giving_up:,}" if holder.giving_up else "")
    return row


def _balance(holders: list[Holder]) -> str:
    loads = [each.shards for each in holders]
    least, most, ranks = min(loads), max(loads), counted(len(loads), "rank")
    if least == most:
        return f"balance: {counted(most, 'shard')} for each of {ranks}"
    mean = sum(loads) / len(loads)
    return f"balance: {least:,} to {most:,} shards over {ranks}, the most {most / mean:.2f} times the mean"


def _width(console: Terminal) -> int:
    return min(WIDTH, console.width)
