"""How good a shuffle is, by two figures over the first batches of several epochs.

spread      into how many of 1,000 equal stretches of the file a batch falls: 226 for a perfect shuffle
imbalance   how far the mean row number of a batch is from the middle of the file, over what a perfect shuffle has (1):
            with rows sorted by label, how unlike the whole a batch would be. Without any shuffle it is about 16.
"""

import math
import statistics

from benchmarks import Row, Table
from benchmarks.data_loading import scale
from benchmarks.data_loading.contenders import (
    AS_IT_COMES,
    PERMUTED,
    STRATA,
    STREAMED,
    WHOLE_CHUNKS,
    Contender,
    by_row_group,
    players,
)

EPOCHS, BATCHES = 8, 8
STRETCHES = 1000
CONTENDERS = (
    *by_row_group(STRATA),
    Contender("litdata", AS_IT_COMES),
    Contender("litdata", WHOLE_CHUNKS, "whole chunks shuffled"),
    Contender("mosaic"),
    Contender("grain"),
    PERMUTED,
    STREAMED,
)


def table(peers: list[str]) -> Table:
    rows = []
    with players([STRATA, *peers]) as started:
        for each in CONTENDERS:
            if each.kind in started:
                ask = started[each.kind].ask
                found = [ask("numbers", seed=seed, most=BATCHES, **each.settings) for seed in range(EPOCHS)]
                rows += _rows(each.name, [batch for batches in found for batch in batches])
    return Table(f"Shuffle of {scale.ROWS:,} rows, of {STRETCHES:,} stretches in a batch, and imbalance", rows)


def _rows(name: str, batches: list[list[int]]) -> list[Row]:
    spread, imbalance = spreads(batches), imbalance_of(batches)
    return [
        Row(f"{name}: stretches", statistics.median(spread), max(spread), ""),
        Row(f"{name}: imbalance", imbalance, imbalance, ""),
    ]


def spreads(batches: list[list[int]]) -> list[int]:
    """Of each batch, by the numbers of its rows."""
    return [len({row * STRETCHES // scale.ROWS for row in batch}) for batch in batches]


def imbalance_of(batches: list[list[int]]) -> float:
    perfect = 1 / math.sqrt(12 * scale.BATCH)
    off = [(statistics.fmean(batch) / scale.ROWS - 0.5) / perfect for batch in batches]
    return math.sqrt(statistics.fmean(each * each for each in off))
