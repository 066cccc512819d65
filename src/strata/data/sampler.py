"""The loader's order, and its exact resume, for any map-style dataset with an ordinary DataLoader:

    sampler = ResumableSampler(len(dataset), global_batch_size=256, rank=rank, world_size=world_size)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
    for batch in sampler.over(loader): …        the rest of the epoch; then the next one's turn
    sampler.state_dict()                        what was given out by `over` is consumed, and nothing else

A DataLoader asks for batches long before it gives them out, so the sampler alone cannot know which were consumed: only
what goes through `over` is counted.
"""

from collections.abc import Iterator

from strata.core.orders import WINDOW_SHARDS, ElasticOrder, ShardLayout, Tail
from strata.data.cursor import Cursor
from strata.data.position import beginning
from strata.data.runs import Share

SHARD_SIZE = 1024
"""Samples that lie near each other, for datasets that read better so; with `shuffle` they are mixed over windows."""


class ResumableSampler(Cursor):
    """A batch sampler: gives lists of indexes, this rank's share of each global batch."""

    def __init__(
        self,
        total_samples: int,
        global_batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        tail: Tail = "drop",
        shard_size: int = SHARD_SIZE,
        streams: int | None = None,
        window_shards: int = WINDOW_SHARDS,
    ) -> None:
        self._share = Share.of(rank, world_size)
        position = beginning(
            f"samples-{total_samples}",
            ShardLayout(total_samples, shard_size),
            global_batch_size,
            seed=seed,
            shuffle=shuffle,
            streams=streams,
            window_shards=window_shards,
            tail=tail,
            epoch=epoch,
        )
        super().__init__(position)

    @property
    def order(self) -> ElasticOrder:
        return self._order

    def __len__(self) -> int:
        """The batches of the epoch that are left."""
        return self._order.batches - self.batch

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(self.batch, self._order.batches):
            self._asked()
            yield self._order.places(batch, *self._share).tolist()

    @property
    def _name(self) -> str:
        return "sampler"
