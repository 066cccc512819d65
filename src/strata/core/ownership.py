"""Which rank owns which shard under a view: a cache over the pure schemes, by the strategy's released name."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from strata.core.ring import Ring
from strata.core.slots import Ownership
from strata.core.state import Dataset
from strata.core.views import View
from strata.errors import InvalidInput

STRATEGIES = ("slots-v1", "ring-v1")


class RankOwnership(Protocol):
    """What the core asks of a strategy."""

    def shards_of(self, rank: int) -> list[int]:
        """The rank's shards in ascending order."""
        ...

    def load(self, rank: int) -> int:
        """How many they are."""
        ...

    def owners(self) -> NDArray[np.int64]: ...


class SlotRanks:
    """slots-v1 told in ranks: the slot scheme and the view's rank → slot."""

    def __init__(self, ownership: Ownership, view: View) -> None:
        self.ownership, self.view = ownership, view
        self._owners: NDArray[np.int64] | None = None
        self._shards: dict[int, list[int]] = {}

    def shards_of(self, rank: int) -> list[int]:
        slot = self.view.slots.get(rank)
        if slot is None:
            return []
        if rank not in self._shards:
            self._shards[rank] = np.sort(self.ownership.shards_of(slot)).tolist()
        return self._shards[rank]

    def load(self, rank: int) -> int:
        slot = self.view.slots.get(rank)
        return 0 if slot is None else len(self.ownership.shards_of(slot))

    def owners(self) -> NDArray[np.int64]:
        """The rank that owns each shard; −1 where nobody is there."""
        if self._owners is None:
            ranks = np.full(self.view.slot_count + 1, -1, np.int64)
            count = len(self.view.slots)
            slots = np.fromiter(self.view.slots.values(), np.int64, count)
            ranks[slots] = np.fromiter(self.view.slots.keys(), np.int64, count)
            self._owners = ranks[self.ownership.owners()]
        return self._owners


class RingRanks:
    """ring-v1 told in ranks: a node's name is its rank in decimal, so ownership depends on who is there alone."""

    def __init__(self, shard_count: int, seed: int, view: View) -> None:
        ring = Ring([str(rank) for rank in view.ranks])
        ranks = np.array([int(name) for name in ring.names], np.int64)
        self._owners = ranks[ring.owners(shard_count, seed)] if len(ranks) else np.full(shard_count, -1, np.int64)
        self._loads: NDArray[np.int64] | None = None

    def shards_of(self, rank: int) -> list[int]:
        return np.flatnonzero(self._owners == rank).tolist()

    def load(self, rank: int) -> int:
        if self._loads is None:
            self._loads = np.bincount(self._owners[self._owners >= 0])
        return int(self._loads[rank]) if rank < len(self._loads) else 0

    def owners(self) -> NDArray[np.int64]:
        return self._owners


class Ownerships:
    """The latest ownership of each dataset, moved on from the one before where the view differs by one step."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str, int], tuple[View, RankOwnership]] = {}

    def of(self, job: str, dataset: Dataset, view: View) -> RankOwnership:
        key = (job, dataset.dataset, dataset.version)
        latest = self._latest.get(key)
        if latest is not None and (latest[0] is view or latest[0] == view):
            return latest[1]
        owned = _own(dataset, view, None if latest is None else latest[1])
        self._latest[key] = (view, owned)
        return owned

    def forget(self, job: str, dataset: str) -> None:
        for key in [key for key in self._latest if key[:2] == (job, dataset)]:
            del self._latest[key]


def _own(dataset: Dataset, view: View, before: RankOwnership | None) -> RankOwnership:
    if dataset.strategy == "ring-v1":
        return RingRanks(dataset.shard_count, dataset.seed, view)
    if dataset.strategy == "slots-v1":
        if isinstance(before, SlotRanks):
            return SlotRanks(before.ownership.moved_to(view), view)
        return SlotRanks(Ownership.of(dataset.shard_count, dataset.seed, view), view)
    raise InvalidInput(f"strategy {dataset.strategy!r} is not one of {', '.join(STRATEGIES)}")
