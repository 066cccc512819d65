"""The loader's order, and its exact resume, for any map-style dataset with an ordinary DataLoader:

    sampler = ResumableSampler(len(dataset), global_batch_size=256, rank=rank, world_size=world_size)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
    for batch in sampler.over(loader): …        the rest of the epoch; then the next one's turn
    sampler.state_dict()                        what was given out by `over` is consumed, and nothing else

A DataLoader asks for batches long before it gives them out, so the sampler alone cannot know which were consumed: only
what goes through `over` is counted.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from strata.core.ids import check_int
from strata.core.orders import WINDOW_SHARDS, ElasticOrder, ShardLayout, Tail
from strata.data.position import Position, order_at, resumed, streams_for
from strata.data.runs import Share
from strata.errors import InvalidInput

T = TypeVar("T")

SHARD_SIZE = 1024
"""Samples that lie near each other, for datasets that read better so; with `shuffle` they are mixed over windows."""


class ResumableSampler:
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
        layout = ShardLayout(total_samples, shard_size)
        self._position = Position(
            fingerprint=f"samples-{total_samples}",
            total_samples=total_samples,
            shard_size=shard_size,
            global_batch_size=global_batch_size,
            seed=seed,
            shuffle=shuffle,
            streams=streams_for(layout, global_batch_size, window_shards, shuffle) if streams is None else streams,
            window_shards=window_shards,
            tail=tail,
            epoch=check_int(epoch, "epoch"),
            batch=0,
        )
        self._order = order_at(self._position)
        self._is_counted = True

    @property
    def epoch(self) -> int:
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The next one of the epoch."""
        return self._position.batch

    @property
    def order(self) -> ElasticOrder:
        return self._order

    def __len__(self) -> int:
        """The batches of the epoch that are left."""
        return self._order.batches - self.batch

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(self.batch, self._order.batches):
            self._is_counted = False
            yield self._order.places(batch, *self._share).tolist()

    def over(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of a DataLoader that has this sampler, each counted as it is given out. At the end of the epoch
        the next one's turn comes."""
        epoch = self.epoch
        for given, batch in enumerate(loader, self.batch + 1):
            self._position, self._is_counted = self._position.at(epoch, given), True
            yield batch
            if (self.epoch, self.batch) != (epoch, given):
                return  # it was sent elsewhere meanwhile
            self._is_counted = False
        if self.batch < self._order.batches:
            raise InvalidInput(
                f"the loader ended after batch {self.batch} of {self._order.batches}: is this its batch_sampler?"
            )
        self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """From its first batch on."""
        self._go_to(self._position.at(check_int(epoch, "epoch"), 0))

    def state_dict(self) -> dict[str, Any]:
        if not self._is_counted:
            raise InvalidInput(
                "which batches were consumed is not known, since a DataLoader asks for them ahead: iterate over "
                "sampler.over(loader) instead of the loader itself"
            )
        return self._position.plain()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._go_to(resumed(self._position, Position.of(state)))

    def _go_to(self, position: Position) -> None:
        self._position, self._is_counted = position, True
        self._order = order_at(position)
