"""`strata data verify`: what the coordinator's ledger proves of an epoch."""

from typing import Annotated, Any

import typer

from strata.cli.data_place import Dataset, Epoch, Job, asked, unproven_of
from strata.cli.drawing import Text, open_console
from strata.cli.output import say_json
from strata.cli.remote import Json, Url
from strata.data.ledger import Ledger, Verdict, judge, read_ledger
from strata.texts import counted

SHOWN = 20
MISSING, LEFT_OUT = 1, 3
"""Exit statuses."""
PROVEN = (
    "Proven: that workers reported every place of the epoch's order, but for a tail that is dropped, and that each was "
    "counted once. An order has each sample at one place."
)
MISSING_MEANS = "A sample is missing if no worker reported it to the coordinator, even if one has read it."
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

    Of the last epoch that is over, or the one that runs if none is. Ends with 0 if it is proven, with 1 if samples are
    missing, and with 3 if none is, but damaged ones were left out of their batches (on_damage="skip"). Of the
    epoch that runs the missing ranges are told; of one that is over the ledger keeps only how many they are.
    """
    ledger = asked(url, job, lambda asker: read_ledger(asker, dataset))
    verdict = judge(ledger, epoch)
    if as_json:
        say_json(_document(ledger, verdict))
    else:
        _tell(ledger, verdict, None if everything else SHOWN)
    if not verdict.whole:
        raise typer.Exit(MISSING if verdict.missing_samples else LEFT_OUT)


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
        "given_out_samples": verdict.given_out,
        "left_out_samples": verdict.left_out,
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
        f"{dataset.dataset_id}, version {dataset.version}, epoch {verdict.epoch} ({state}): " + _found(verdict),
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


def _found(verdict: Verdict) -> str:
    left_out = f"{verdict.left_out:,} were damaged and left out: nobody was given them"
    if verdict.missing_samples:
        told = f"{verdict.missing_samples:,} of {counted(verdict.total, 'sample')} are missing"
        return f"{told}, and {left_out}" if verdict.left_out else told
    if verdict.left_out:
        return f"{verdict.given_out:,} of {counted(verdict.total, 'sample')} were given out, each once; {left_out}"
    return f"{_whole(verdict)} are consumed, each once"


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
    told = [MISSING_MEANS if verdict.missing_samples else PROVEN]
    if verdict.reissued:
        told.append(
            f"{counted(verdict.reissued, 'sample')} were given out again since a worker was lost: it may have read "
            "some of them, and did not report them."
        )
    return told if verdict.missing_samples else [*told, UNPROVEN[order]]
