"""Whose samples an epoch waits for: told to people who wonder why a worker that has nothing left does not go on."""

from typing import NamedTuple

import numpy as np

from strata.core.consumption import Consumption
from strata.data.ledger import Asks, Holder, Ledger, read_ledger
from strata.errors import NotFound, Refused
from strata.texts import counted, some_of

RANKS_ASKED = 32


class Lag(NamedTuple):
    """So many samples of a rank's shards nobody has reported."""

    holder: Holder
    samples: int

    def __str__(self) -> str:
        rank, worker, _, giving_up = self.holder
        who = f"{worker} (rank {rank})" if worker else f"rank {rank}, to which nobody has come,"
        gives = f", and has yet to give up {counted(giving_up, 'shard')}" if giving_up else ""
        return f"{who} has {counted(self.samples, 'sample')} left{gives}"


async def behind(asks: Asks, dataset_id: str) -> str:
    """A sentence: how much is missing of the epoch, and who has most of it."""
    ledger = await read_ledger(asks, dataset_id)
    lags = [await _lag(asks, ledger, holder) for holder in ledger.holders[:RANKS_ASKED]]
    late = sorted((lag for lag in lags if lag.samples or lag.holder.giving_up), key=lambda lag: -lag.samples)
    return f"{_missing(ledger)}: {some_of(late)}" if late else _missing(ledger)


async def behind_together(asks: Asks, dataset_id: str, ranks: int) -> str:
    """The same, where so many ranks take their steps together: whoever is lost is waited for until all go back."""
    ledger = await read_ledger(asks, dataset_id)
    return f"{_missing(ledger)}: they were shared out to {counted(ranks, 'rank')}, and {len(ledger.holders)} are there"


def _missing(ledger: Ledger) -> str:
    known, missing = ledger.dataset, ledger.dataset.total_samples - ledger.consumed.count
    return f"{missing:,} of {counted(known.total_samples, 'sample')} of epoch {known.epoch} are not reported yet"


async def _lag(asks: Asks, ledger: Ledger, holder: Holder) -> Lag:
    known = ledger.dataset
    try:
        answer = await asks.call("GetShards", dataset_id=known.dataset_id, rank=holder.rank, epoch=known.epoch)
    except (NotFound, Refused):  # it left just now, or has more shards than an answer can tell
        return Lag(holder, 0)
    shards = np.array(answer.shard_ids, np.int64)
    starts, sizes = shards * known.shard_size, known.layout.sizes(shards)
    consumed = Consumption(ledger.consumed).within(starts, starts + sizes)
    return Lag(holder, int(sizes.sum() - consumed.sum()))
