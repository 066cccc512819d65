"""Sharding on its own, with no coordinator: who reads what in which epoch.

`ShardManager` keeps workers and datasets and says which shards are whose; `EpochCoordinator` owns each dataset's
epoch and its permutations. Both are safe between threads. Workers are told apart by name, never by the order in
which they happened to register. What is decided here is computed in `strata.core`; there is no I/O.
"""

import re
import threading
from collections.abc import Iterable
from itertools import repeat
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.core.ids import check_bool, check_choice, check_id, check_int
from strata.core.mix import check_seed
from strata.core.orders import EpochOrder, ShardLayout
from strata.core.ring import VIRTUAL_NODES, Ring, check_virtual_nodes
from strata.core.slots import MAX_SHARDS, Ownership
from strata.core.views import View
from strata.errors import Conflict, NotFound, Refused

Strategy = Literal["slots", "ring"]
Indexes = NDArray[np.int64]

_NUMBER = re.compile(r"0*(\d+)")


class ShardAssignment(msgspec.Struct, frozen=True, gc=False):
    """One shard of one epoch in one worker's hands: samples [start_index, end_index) of the dataset."""

    dataset_id: str
    shard_id: int
    start_index: int
    end_index: int
    file_paths: list[str]
    epoch: int


class DatasetParams(msgspec.Struct, frozen=True):
    """All that decides how a dataset is cut and ordered."""

    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int

    def __post_init__(self) -> None:
        check_int(self.layout.shard_count, "the number of shards", most=MAX_SHARDS)
        check_bool(self.shuffle, "shuffle")
        check_seed(self.seed)

    @property
    def layout(self) -> ShardLayout:
        return ShardLayout(self.total_samples, self.shard_size)


class EpochCoordinator:
    """The epoch that each dataset is in, and the order of any epoch, past or future."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._params: dict[str, DatasetParams] = {}
        self._epochs: dict[str, int] = {}

    def register(
        self, dataset_id: str, total_samples: int, shard_size: int, shuffle: bool = False, seed: int = 0
    ) -> None:
        """Start a dataset at epoch 0. Again with equal values changes nothing; with others it is a Conflict."""
        check_id(dataset_id, "dataset_id")
        params = DatasetParams(total_samples, shard_size, shuffle, seed)
        with self._lock:
            known = self._params.setdefault(dataset_id, params)
            self._epochs.setdefault(dataset_id, 0)
        if known != params:
            raise Conflict(_difference(dataset_id, known, params))

    def unregister(self, dataset_id: str) -> None:
        """Forget a dataset and its epoch."""
        with self._lock:
            self._known(dataset_id)
            del self._params[dataset_id], self._epochs[dataset_id]

    def datasets(self) -> dict[str, DatasetParams]:
        """What is registered, by id, in the order of the ids."""
        with self._lock:
            return {dataset_id: self._params[dataset_id] for dataset_id in sorted(self._params)}

    def current(self, dataset_id: str) -> int:
        """The epoch that a dataset is in."""
        with self._lock:
            self._known(dataset_id)
            return self._epochs[dataset_id]

    def advance(self, dataset_id: str, from_epoch: int | None = None) -> int:
        """Advance from an epoch, once, however many ask; answers the epoch that the dataset is then in.

        Without `from_epoch` every call advances.
        """
        with self._lock:
            self._known(dataset_id)
            current = self._epochs[dataset_id]
            origin = current if from_epoch is None else check_int(from_epoch, "from_epoch")
            if origin > current:
                raise Refused(f"dataset {dataset_id!r} is in epoch {current}: it cannot advance from epoch {origin}")
            self._epochs[dataset_id] = max(current, origin + 1)
            return self._epochs[dataset_id]

    def order(self, dataset_id: str, epoch: int | None = None) -> EpochOrder:
        """The order of an epoch, by default of the current one."""
        with self._lock:
            params = self._known(dataset_id)
            chosen = self._epochs[dataset_id] if epoch is None else epoch
        return EpochOrder(params.layout, params.seed, chosen, params.shuffle)

    def _known(self, dataset_id: str) -> DatasetParams:
        params = self._params.get(check_id(dataset_id, "dataset_id"))
        if params is None:
            raise NotFound(f"dataset {dataset_id!r} is not registered; {_known_ones(self._params)}")
        return params


class ShardManager:
    """Which worker reads which shards. The workers present when shards are first asked for found the world.

    Whoever joins or leaves after that moves as few shards as can be: with strategy "slots" loads differ by at most
    one shard; with "ring" ownership follows from the names alone, at the price of balance. Changes between two
    questions count as one: first all who left, then all who joined, each in the natural order of their ids (worker-2
    before worker-10). A world that nobody is left of is founded anew.
    """

    def __init__(self, strategy: Strategy = "slots", virtual_nodes: int = VIRTUAL_NODES) -> None:
        check_virtual_nodes(virtual_nodes)
        check_choice(strategy, "strategy", ("slots", "ring"))
        self.epochs = EpochCoordinator()
        """The epochs and orders of the datasets registered here."""
        self._lock = threading.Lock()
        self._workers: dict[str, str] = {}  # by id, the key by which they are put in order
        self._in_order: list[str] | None = []  # None until the next question settles what has changed
        self._world: _World = _SlotWorld() if strategy == "slots" else _RingWorld(virtual_nodes)

    def register_worker(self, worker_id: str) -> None:
        """Let a worker join. Again for one that is present changes nothing."""
        check_id(worker_id, "worker_id")
        with self._lock:
            if worker_id not in self._workers:
                self._workers[worker_id] = _natural(worker_id)
                self._in_order = None

    def remove_worker(self, worker_id: str) -> None:
        """Let a worker leave."""
        with self._lock:
            self._check_present(worker_id)
            del self._workers[worker_id]
            self._in_order = None

    def register_dataset_params(
        self, dataset_id: str, total_samples: int, shard_size: int, shuffle: bool = False, seed: int = 0
    ) -> None:
        """Add a dataset, at epoch 0. Again with equal values changes nothing; with others it is a Conflict."""
        self.epochs.register(dataset_id, total_samples, shard_size, shuffle, seed)

    def unregister_dataset(self, dataset_id: str) -> None:
        """Forget a dataset, so that its id can be used for something else."""
        with self._lock:
            self.epochs.unregister(dataset_id)
            self._world.forget(dataset_id)

    def get_shard_for_worker(self, dataset_id: str, worker_id: str, epoch: int | None = None) -> list[ShardAssignment]:
        """A worker's shards in the order of an epoch, by default of the current one."""
        with self._lock:
            order = self.epochs.order(dataset_id, epoch)
            self._check_present(worker_id)
            self._settle()
            owned = self._world.owned(dataset_id, order, worker_id)
        # Positions are distinct, so any sort gives the same order.
        return _assignments(dataset_id, order, owned[np.argsort(order.positions_of(owned))])

    def rebalance_shards(self) -> dict[str, list[ShardAssignment]]:
        """Every worker's shards of every dataset, in the order of each dataset's current epoch."""
        with self._lock:
            workers = self._settle()
            owners = [(each, order, self._world.owners(each, order)) for each, order in self._orders()]
            names = self._world.names()
        shares: dict[str, list[ShardAssignment]] = {worker: [] for worker in workers}
        for dataset_id, order, owner in owners if workers else []:
            _deal(dataset_id, order, owner, names, shares)
        return shares

    def advance_epoch(self, dataset_id: str, from_epoch: int | None = None) -> int:
        """Advance a dataset's epoch; with `from_epoch` once, however many ask. Answers the epoch it is then in."""
        return self.epochs.advance(dataset_id, from_epoch)

    def _orders(self) -> list[tuple[str, EpochOrder]]:
        return [(dataset_id, self.epochs.order(dataset_id)) for dataset_id in self.epochs.datasets()]

    def _settle(self) -> list[str]:
        """The workers in natural order, once the world knows of all changes."""
        if self._in_order is None:
            self._in_order = sorted(self._workers, key=self._workers.__getitem__)
            self._world.settle(self._in_order)
        return self._in_order

    def _check_present(self, worker_id: str) -> None:
        if check_id(worker_id, "worker_id") not in self._workers:
            raise NotFound(f"worker {worker_id!r} is not registered; {_known_ones(self._workers)}")


class _World(Protocol):
    """Who is present, as one strategy sees it. An owner is a number; `names` says whose."""

    def settle(self, workers: list[str]) -> None: ...

    def names(self) -> dict[int, str]: ...

    def owned(self, dataset_id: str, order: EpochOrder, worker: str) -> Indexes: ...

    def owners(self, dataset_id: str, order: EpochOrder) -> Indexes: ...

    def forget(self, dataset_id: str) -> None: ...


class _SlotWorld:
    """slots-v1: a worker is a rank in a view, its owner number is its slot."""

    def __init__(self) -> None:
        self._view = View.empty()
        self._ranks: dict[str, int] = {}
        self._ownerships: dict[str, Ownership] = {}

    def settle(self, workers: list[str]) -> None:
        present = frozenset(workers)
        gone = sorted((each for each in self._ranks if each not in present), key=_natural)
        if len(gone) == len(self._ranks):
            self._view = View.declared(len(workers))
            self._ranks = {worker: rank for rank, worker in enumerate(workers)}
            return
        for worker in gone:
            self._view = self._view.leave(self._ranks.pop(worker))
        for worker in workers:
            if worker not in self._ranks:
                self._ranks[worker] = self._view.ranks[-1] + 1
                self._view = self._view.join(self._ranks[worker])

    def names(self) -> dict[int, str]:
        return {self._view.slots[rank]: worker for worker, rank in self._ranks.items()}

    def owned(self, dataset_id: str, order: EpochOrder, worker: str) -> Indexes:
        slot = self._view.slots[self._ranks[worker]]
        return self._ownership(dataset_id, order).shards_of(slot).astype(np.int64)

    def owners(self, dataset_id: str, order: EpochOrder) -> Indexes:
        return self._ownership(dataset_id, order).owners()

    def forget(self, dataset_id: str) -> None:
        self._ownerships.pop(dataset_id, None)

    def _ownership(self, dataset_id: str, order: EpochOrder) -> Ownership:
        warm = self._ownerships.get(dataset_id)
        # A dataset may have been forgotten and registered anew with other values.
        if warm is not None and (warm.shard_count, warm.seed) == (order.layout.shard_count, order.seed):
            found = warm.moved_to(self._view)
        else:
            found = Ownership.of(order.layout.shard_count, order.seed, self._view)
        self._ownerships[dataset_id] = found
        return found


class _RingWorld:
    """ring-v1: an owner number is the index of a worker's name in sorted order."""

    def __init__(self, virtual_nodes: int) -> None:
        self._ring = Ring((), virtual_nodes)
        self._owners: dict[tuple[str, int, int], Indexes] = {}

    def settle(self, workers: list[str]) -> None:
        self._ring = Ring(workers, self._ring.virtual_nodes)
        self._owners.clear()

    def names(self) -> dict[int, str]:
        return dict(enumerate(self._ring.names))

    def owned(self, dataset_id: str, order: EpochOrder, worker: str) -> Indexes:
        return np.flatnonzero(self.owners(dataset_id, order) == self._ring.names.index(worker))

    def owners(self, dataset_id: str, order: EpochOrder) -> Indexes:
        key = dataset_id, order.layout.shard_count, order.seed
        if key not in self._owners:
            self._owners[key] = self._ring.owners(order.layout.shard_count, order.seed)
        return self._owners[key]

    def forget(self, dataset_id: str) -> None:
        self._owners = {key: owners for key, owners in self._owners.items() if key[0] != dataset_id}


def _deal(
    dataset_id: str,
    order: EpochOrder,
    owners: Indexes,
    names: dict[int, str],
    shares: dict[str, list[ShardAssignment]],
) -> None:
    """Add every worker's shards of one dataset to its share."""
    sequence = order.shards_at(np.arange(len(owners), dtype=np.int64))
    owner = owners[sequence]
    # Numbers that fit 16 bits are sorted by radix, ten times as fast; stable keeps the order of the epoch.
    narrow = owner.astype(np.uint16) if max(names) < 2**16 else owner
    dealt = _assignments(dataset_id, order, sequence[np.argsort(narrow, kind="stable")])
    start = 0
    for number, load in enumerate(np.bincount(owner, minlength=max(names) + 1).tolist()):
        if number in names:
            shares[names[number]] += dealt[start : start + load]
        start += load


def _assignments(dataset_id: str, order: EpochOrder, shards: Indexes) -> list[ShardAssignment]:
    return assignments(dataset_id, order.layout, order.epoch, shards)


def assignments(
    dataset_id: str, layout: ShardLayout, epoch: int, shards: Indexes, files: Iterable[list[str]] | None = None
) -> list[ShardAssignment]:
    """The objects for these shards, made column by column: there may be a hundred thousand of them."""
    starts = shards * layout.shard_size
    ends = np.minimum(starts + layout.shard_size, layout.total_samples)
    files = map(list, repeat(())) if files is None else files
    columns = (repeat(dataset_id), shards.tolist(), starts.tolist(), ends.tolist(), files, repeat(epoch))
    return list(map(ShardAssignment, *columns))


def _natural(name: str) -> str:
    """A sort key by which numbers inside names count as numbers: each is preceded by how many digits it has."""
    # The name itself comes last and settles worker-01 against worker-1.
    return _NUMBER.sub(lambda found: f"{len(found[1]):03}{found[1]}", name) + " " + name


def _difference(dataset_id: str, known: DatasetParams, asked: DatasetParams) -> str:
    differing = ", ".join(
        f"{field}={getattr(asked, field)} (registered with {getattr(known, field)})"
        for field in known.__struct_fields__
        if getattr(known, field) != getattr(asked, field)
    )
    return (
        f"dataset {dataset_id!r} is registered already and differs in {differing}. That is a new version of it, in "
        "which shards hold other samples, and it never replaces the old one silently: unregister the dataset first, "
        "or use another id"
    )


def _known_ones(names: Iterable[str]) -> str:
    first = sorted(names, key=_natural)
    if not first:
        return "none is"
    return f"known are {', '.join(first[:5])}" + (f" and {len(first) - 5} more" if len(first) > 5 else "")
