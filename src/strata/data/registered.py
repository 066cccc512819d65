"""What is asked of the coordinator about datasets, and what it answers, as values. A registration that is wrong in
itself is refused before anybody is asked, by the same check that the coordinator makes."""

from typing import Any, TypeAlias

import msgspec

from strata.core.datasets import ORDERS, check_dataset
from strata.core.events import DatasetRegisterRequested
from strata.core.ids import check_bool, check_choice, check_int
from strata.core.orders import ShardLayout
from strata.data.shardfiles import Indexes
from strata.sharding import Strategy

SHARD_SIZE = 10_000
SHARDS = 1000

FilesKey: TypeAlias = tuple[int, str, str]
"""The version, path and format of a dataset: what has to be the same for its files to be the same."""


class Registration(msgspec.Struct, frozen=True):
    """What became of a registration: the version in force, the epoch it is in, and how many samples there are."""

    dataset_id: str
    version: int
    epoch: int
    total_samples: int


class RegisteredDataset(msgspec.Struct, frozen=True):
    """A dataset as the coordinator knows it."""

    dataset_id: str
    version: int
    epoch: int
    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int
    path: str
    format: str
    strategy: str
    order: str
    consumed_samples: int
    """Of this epoch, as far as anybody reported."""
    fingerprint: str = ""
    """Of its files, as whoever registered it found them; empty: it did not look."""
    columns: str = ""
    """A JSON object of their names and types, as they were found."""
    left_out_samples: int = 0
    """So many of the consumed samples were damaged: nobody was given them."""

    @property
    def layout(self) -> ShardLayout:
        return ShardLayout(self.total_samples, self.shard_size)

    @property
    def shard_count(self) -> int:
        """Also of one that a coordinator of another version let in, and of which nothing can be read here."""
        return -(-self.total_samples // max(1, self.shard_size))


def registered(answer: Any) -> RegisteredDataset:
    """A dataset of an answer."""
    return RegisteredDataset(*(getattr(answer, field) for field in RegisteredDataset.__struct_fields__))


class Cut(msgspec.Struct, frozen=True):
    """How a dataset is cut, ordered and shared out, as a caller says it."""

    shard_size: int | None
    shuffle: bool
    seed: int
    strategy: Strategy
    order: str

    def event(self, job: str, dataset_id: str, path: str, format: str, total_samples: int) -> DatasetRegisterRequested:
        """The registration, if nothing is wrong with it in itself."""
        check_choice(self.strategy, "strategy", ("slots", "ring"))
        check_choice(self.order, "order", ORDERS)
        check_bool(self.shuffle, "shuffle")
        check_int(total_samples, "total_samples", least=1)
        size = default_shard_size(total_samples) if self.shard_size is None else self.shard_size
        asked = DatasetRegisterRequested(
            job,
            dataset_id,
            total_samples,
            size,
            self.shuffle,
            self.seed,
            path,
            format,
            f"{self.strategy}-v1",
            self.order,
        )
        check_dataset(asked)
        return asked


class Share(msgspec.Struct, frozen=True):
    """The coordinator's answer: which shards of which version are whose, in their order."""

    dataset_id: str
    version: int
    epoch: int
    rank: int
    path: str
    format: str
    layout: ShardLayout
    shards: Indexes
    fingerprint: str
    columns: str

    @property
    def key(self) -> "FilesKey":
        return self.version, self.path, self.format


def default_shard_size(total_samples: int) -> int:
    """Known from the number of samples alone, so that all who register the same say the same."""
    return min(SHARD_SIZE, -(-total_samples // SHARDS))
