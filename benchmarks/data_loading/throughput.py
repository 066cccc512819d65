"""Rows and samples a second, in turns."""

import statistics
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from benchmarks import Row, Table
from benchmarks.data_loading import scale
from benchmarks.data_loading.contenders import (
    AS_IT_COMES,
    BARE,
    PERMUTED,
    STRATA,
    STREAMED,
    WHOLE_CHUNKS,
    Contender,
    Player,
    by_row_group,
    players,
)

ROUNDS = 3
TIMES_BEST_PEER, TIMES_BEST_OF_SAMPLES = 10.0, 1.0
NO_WORKERS, TWO_WORKERS = {"workers": 0}, {"workers": 2}
ROWS = (
    *by_row_group(STRATA),
    Contender("litdata", {**NO_WORKERS, **AS_IT_COMES}, "no workers"),
    Contender("litdata", {**TWO_WORKERS, **AS_IT_COMES}, "2 workers"),
    Contender("litdata", {**NO_WORKERS, **WHOLE_CHUNKS}, "no workers, whole chunks shuffled"),
    Contender("mosaic", NO_WORKERS, "no workers"),
    Contender("mosaic", TWO_WORKERS, "2 workers"),
    Contender("grain", NO_WORKERS, "no workers"),
    Contender("grain", TWO_WORKERS, "2 workers"),
    PERMUTED,
    STREAMED,
    *by_row_group(BARE),
)
SAMPLES = (
    Contender(STRATA, {"kept_as": "arrow"}, "from Arrow"),
    Contender(STRATA, {"kept_as": "tar"}, "from WebDataset"),
    Contender("litdata", {"batched": True}, "by its loader, no workers"),
    Contender("litdata", {"batched": False}, "its dataset alone, in no batches"),
    Contender(BARE, {"threads": 1}, "plain reads by one thread"),
    Contender(BARE, {"threads": 2}, "plain reads by two threads"),
)


class Rates(NamedTuple):
    """What a contender did in each round."""

    contender: Contender
    rounds: list[float]


def tables(peers: list[str]) -> Iterator[Table]:
    with players([STRATA, BARE, *peers]) as started:
        yield Table(
            f"{scale.ROWS:,} rows of {scale.COLUMNS} floats, batches of {scale.BATCH}, shuffled",
            _rows(_measured("rows", ROWS, started), "rows/s", TIMES_BEST_PEER),
        )
        yield Table(
            f"{scale.SAMPLES:,} samples of {scale.SAMPLE_BYTES:,} bytes, batches of {scale.SAMPLES_BATCH}, shuffled",
            _rows(_measured("samples", SAMPLES, started), "samples/s", TIMES_BEST_OF_SAMPLES),
        )


def _measured(act: str, contenders: Sequence[Contender], started: dict[str, Player]) -> list[Rates]:
    """Each in every round, in an order that moves on. The first round only warms up, and is short."""
    found = [Rates(each, []) for each in contenders if each.kind in started]
    for number in range(ROUNDS + 1):
        shift = number % len(found)
        for each, rounds in found[shift:] + found[:shift]:
            seconds = scale.SECONDS if number else min(0.5, scale.SECONDS)
            count, taken = started[each.kind].ask(act, seconds=seconds, **each.settings)
            if number:
                rounds.append(count / taken)
    return found


def _rows(found: list[Rates], unit: str, target: float) -> list[Row]:
    rows = [Row(each.name, statistics.median(rounds), max(rounds), unit) for each, rounds in found]
    own = _best(found, [STRATA])
    peers = {each.kind for each, _ in found} - {STRATA, BARE}
    for what, kinds, least in (("the best peer", peers, target), ("bare reads", {BARE}, None)):
        ratios = [mine / other for mine, other in zip(own, _best(found, kinds), strict=False)]
        if ratios:
            rows.append(Row(f"Strata / {what}", statistics.median(ratios), max(ratios), "", least, at_least=True))
    return rows


def _best(found: list[Rates], kinds: Container[str]) -> list[float]:
    """Of each round."""
    return [max(each) for each in zip(*(rounds for one, rounds in found if one.kind in kinds), strict=True)]
