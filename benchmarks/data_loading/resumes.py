"""From the construction of a loader to its first batch, in the middle of an epoch, in a process that has done no more
than import and open the dataset once; and the start of an epoch of 10 billion samples.

Beside it, in a process as fresh, pyarrow alone reads the row groups that this batch is of: no order that mixes as many
of them can give it sooner.
"""

import statistics

from benchmarks import Row, Table
from benchmarks.data_loading import scale
from benchmarks.data_loading.contenders import AS_IT_COMES, BARE, STRATA, Contender, Player, by_row_group, player

ROUNDS = 5
CONTENDERS = (
    *by_row_group(STRATA),
    *by_row_group(BARE),
    Contender("litdata", AS_IT_COMES),
    Contender("mosaic"),
    Contender("grain"),
)
RESUME_MOST_MS, START_MOST_MS, START_MOST_MB = 100.0, 1000.0, 100.0


def resumes(peers: list[str]) -> Table:
    """HF datasets do not take part: their stream loses what its buffer held."""
    contenders = [each for each in CONTENDERS if each.kind in (STRATA, BARE, *peers)]
    found: dict[str, list[float]] = {each.name: [] for each in contenders}
    for number in range(ROUNDS):
        shift = number % len(contenders)
        for each in contenders[shift:] + contenders[:shift]:
            with player(each.kind) as fresh:
                found[each.name].append(
                    _groups(fresh, each) if each.kind == BARE else fresh.ask("resume", **each.settings)
                )
    rows = []
    for each in contenders:
        taken, most = found[each.name], RESUME_MOST_MS if each.kind == STRATA else None
        rows.append(Row(each.name, statistics.median(taken), min(taken), "ms", most))
    return Table(f"Resume in the middle of {scale.ROWS:,} rows, to the first batch", rows)


def _groups(fresh: Player, bare: Contender) -> float:
    with player(STRATA) as knowing:
        wanted = knowing.ask("wanted", **bare.settings)
    taken: float = fresh.ask("groups", wanted=wanted, **bare.settings)
    return taken


def start() -> Table:
    found = []
    for _ in range(ROUNDS):
        with player(STRATA) as fresh:
            found.append(fresh.ask("start"))
    taken, grown = zip(*found, strict=True)
    rows = [
        Row(
            "index loaded, loader made, first batch located", statistics.median(taken), min(taken), "ms", START_MOST_MS
        ),
        Row("memory, at its peak", statistics.median(grown), min(grown), "MB", START_MOST_MB),
    ]
    return Table(f"Start of an epoch of {scale.HUGE_SAMPLES:,} samples in a million row groups", rows)
