"""`strata data verify`: what the coordinator's ledger proves of an epoch."""

import json
from typing import Annotated, Any

import typer
from rich.text import Text

from strata.cli.data_place import Dataset, Epoch, Job, asked, unproven_of
from strata.cli.drawing import open_console
from strata.cli.remote import Json, Url
from strata.data.ledger import Ledger, Verdict, judge, read_ledger
from strata.texts import counted

SHOWN = 20
PROVEN = (
    "Proven: that workers reported every place of the epoch's order, but for a tail that is dropped, and that each was "
    "counted once. An order has each sample at one place."
)
UNPROVEN = {
    "affinity": "Not proven: what a worker did with a sample before it reported it.",
    "elastic": "Not proven: what was done with a sample. In the elastic order one worker reports for all ranks.",
}


def verify(
    dataset: Dataset,
    epoch: Epoch = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show all missing ranges.")] = False,
    job: Job = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Prove from the coordinator's ledger that an epoch had every sample once, or say which are missing.

    Of the last epoch that is over, or the one that runs if none is. Ends with 0 if it is proven, else with 1. Of the
    epoch that runs the missing ranges are told; of one that is over the ledger keeps only how many they are.
    """
    ledger = asked(url, job, lambda asker: read_ledger(asker, dataset))
    verdict = judge(ledger, epoch)
    if as_json:
        typer.echo(json.dumps(_document(ledger, verdict), indent=2))
    else:
        _tell(ledger, verdict, None if everything else SHOWN)
    if not verdict.whole:
        raise typer.Exit(1)


def _document(ledger: Ledger, verdict: Verdict) -> dict[str, Any]:
    return {
        "dataset_id": ledger.dataset.dataset_id,
        "version": ledger.dataset.version,
        "order": ledger.dataset.order,
        "epoch": verdict.epoch,
        "state": verdict.state,
        "proven": verdict.whole,
        "total_samples": verdict.total,
        "consumed_samples": verdict.consumed,
        "dropped_samples": verdict.dropped,
        "missing_samples": verdict.missing_samples,
        "missing": verdict.missing,
        "reissued_samples": verdict.reissued,
        "unproven_epochs": ledger.unproven,
    }


def _tell(ledger: Ledger, verdict: Verdict, most: int | None) -> None:
    console, dataset = open_console(), ledger.dataset
    sign = Text("✓ ", "green") if verdict.whole else Text("✗ ", "red")
    state = "over" if verdict.state == "over" else "not over yet"
    line = sign.append(
        f"{dataset.dataset_id}, version {dataset.version}, epoch {verdict.epoch} ({state}): "
        + (
            f"{_whole(verdict)} are consumed, each once"
            if verdict.whole
            else f"{verdict.missing_samples:,} of {counted(verdict.total, 'sample')} are missing"
        ),
        "default",
    )
    console.print(line, soft_wrap=True)
    if verdict.dropped:
        console.print(f'  {counted(verdict.dropped, "sample")} that fill no batch: dropped, by tail="drop"')
    for each in _missing(ledger, verdict, most):
        console.print(f"  {each}", soft_wrap=True)
    if any(epoch != verdict.epoch for epoch in ledger.unproven):
        told = f"! of the epochs that are over, not proven: {unproven_of(ledger)}"
        console.print(Text(told, "yellow"), soft_wrap=True)
    for each in _meaning(verdict, dataset.order):
        console.print(Text(each, "dim"), soft_wrap=not console.is_terminal)


def _whole(verdict: Verdict) -> str:
    if not verdict.dropped:
        return f"all {counted(verdict.total, 'sample')}"
    return f"{verdict.consumed:,} of {counted(verdict.total, 'sample')}, all but the tail,"


def _missing(ledger: Ledger, verdict: Verdict, most: int | None) -> list[str]:
    if verdict.missing is None:
        return ["which ones the ledger does not keep once an epoch is over"]
    told = [_range(ledger, start, end) for start, end in verdict.missing[:most]]
    more = len(verdict.missing) - len(told)
    return [*told, f"and {counted(more, 'more range')}: see --all, or --json"] if more else told


def _range(ledger: Ledger, start: int, end: int) -> str:
    places = f"place {start:,}" if end == start + 1 else f"places {start:,} to {end - 1:,}"
    shards = ""
    if ledger.dataset.order == "affinity":  # whose places are those of the shards, one after the other
        first, last = start // ledger.dataset.shard_size, (end - 1) // ledger.dataset.shard_size
        shards = f" (shard {first:,})" if first == last else f" (shards {first:,} to {last:,})"
    return f"{places}{shards}: {counted(end - start, 'sample')}"


def _meaning(verdict: Verdict, order: str) -> list[str]:
    told = [
        PROVEN if verdict.whole else "Missing is what no worker reported to the coordinator, whoever may have read it."
    ]
    if verdict.reissued:
        told.append(
            f"{counted(verdict.reissued, 'sample')} were given out again since a worker was lost: it may have read "
            "some of them, and did not report them."
        )
    return [*told, UNPROVEN[order]] if verdict.whole else told
