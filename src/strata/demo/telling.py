"""The summary of a demo in words, and its loss drawn."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from strata.demo.drawing import curve, is_steep
from strata.demo.summary import Recovery, Summary
from strata.texts import counted, readable_bytes

WIDTH, HEIGHT = 72, 8


def tell(summary: Summary, console: Console) -> None:
    losses = [loss for _, loss in summary.losses]
    scale = ", on a logarithmic scale" if is_steep(losses) else ""
    console.print(Text(f"\nLoss over {counted(len(losses), 'step')}{scale}", "bold"))
    for line in curve(summary.losses, WIDTH, HEIGHT):
        console.print(Text(line, "green"), soft_wrap=True)
    console.print()
    for what, words in _lines(summary):
        console.print(Text(f"{what:<12}", "bold").append(words, "not bold"), soft_wrap=True)
    for problem in summary.problems:
        console.print(Text(f"✗ {problem}", "red"), soft_wrap=True)
    if not summary.problems:
        console.print(Text("✓ ", "green").append("all of this was measured or read back just now", "default"))


def _lines(summary: Summary) -> Iterator[tuple[str, str]]:
    recovery, over = summary.recovery, [each for each in summary.epochs if each.is_over]
    whole = [each for each in over if each.consumed == each.total]
    yield "samples", f"{counted(len(whole), 'epoch')} of {len(over)} over: the ledger has each sample once"
    for each in summary.epochs:
        if not each.is_over:
            yield "", f"epoch {each.epoch} has begun: {each.consumed:,} of {each.total:,} are counted"
    counted_all, trained = sum(each.consumed for each in summary.epochs), summary.checkpoints[-1].samples
    rest = "" if trained >= counted_all else f" of them: {counted_all - trained:,} are not saved yet"
    yield "", f"{counted_all:,} are counted in all, and the last checkpoint has learned from {trained:,}{rest}"
    size = sum(each.size_bytes for each in summary.checkpoints)
    yield "checkpoints", f"{len(summary.checkpoints)}, every byte read and verified ({readable_bytes(size)})"
    compared = [each for each in summary.checkpoints if each.ranks]
    equal = sum(each.is_equal for each in compared)
    yield (
        "parameters",
        f"at {equal} of {len(compared)} checkpoints the same on all ranks and in the checkpoint, bit by bit",
    )
    yield from _recovery(recovery)
    told = ", ".join(f"{each.worker} {each.goodput:.0%}" for each in summary.workers)
    yield "goodput", f"{summary.goodput:.0%} of the workers' time made steps that count ({told})"
    yield from _rest(summary)
    yield "time", f"{summary.seconds:.1f} s in all, {counted(summary.steps, 'step')}"


def _rest(summary: Summary) -> Iterator[tuple[str, str]]:
    """What took the time of those who ended by themselves: the others had no time to say."""
    told = [each.seconds for each in summary.workers if each.seconds is not None]
    spent = {cause: sum(each[cause] for each in told) for cause in (told[0] if told else {})}
    if total := sum(spent.values()):
        shares = ", ".join(f"{cause} {seconds / total:.0%}" for cause, seconds in spent.items())
        yield "", f"of those that ended by themselves: {shares}"


def _recovery(it: Recovery) -> Iterator[tuple[str, str]]:
    again = f"{counted(it.lost_steps, 'step')} made again"
    yield "a worker", f"killed: noticed after {it.detected:.2f} s, its shards shared out after {it.rebalanced:.2f} s,"
    yield "", f"training again after {it.recovered:.2f} s, with {again}"
    yield "", f"added: joined {it.joined:.2f} s after its start, trained with the others after {it.grown:.2f} s"
    yield "coordinator", f"killed: {counted(it.steps_alone, 'step')} made without it, serving again after"
    yield "", f"{it.coordinator_down:.2f} s, and all workers heard after {it.coordinator_heard_all:.2f} s"
