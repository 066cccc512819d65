"""Sharding: how long ownership takes to compute, how even it is, and what the whole assignment costs."""

import numpy as np

from benchmarks import About, Row, Table, megabytes, milliseconds
from strata.core.orders import ElasticOrder, ShardLayout
from strata.core.ring import Ring
from strata.core.slots import Ownership
from strata.core.views import View
from strata.sharding import ShardManager, Strategy

ABOUT = About("half a minute")

SEED = 7
LARGE = 1_000, 100_000
"""Workers and shards of the largest case."""


def run() -> list[Table]:
    return [_slots(), _ring(), _balance(), _assignment("slots"), _assignment("ring"), _batches()]


def _slots() -> Table:
    view, (workers, shards) = View.declared(LARGE[0]), LARGE
    warm = Ownership.of(shards, SEED, view)
    vacated = warm.leave(workers // 2)
    return Table(
        "slots-v1: ownership, and a step from one world to the next",
        [
            milliseconds("cold, 1,000 × 100,000", _nothing, lambda _: Ownership.of(shards, SEED, view), target=25),
            milliseconds("cold, 1,000 × 10,000", _nothing, lambda _: Ownership.of(10_000, SEED, view), target=8),
            milliseconds("leave, 1,000 × 100,000", _nothing, lambda _: warm.leave(workers // 2), target=1),
            milliseconds("join, 1,000 × 100,000", _nothing, lambda _: vacated.join(workers // 2), target=1),
            milliseconds("growth, 1,000 × 100,000", _nothing, lambda _: warm.join(workers), target=1),
            megabytes("peak memory, cold", _nothing, lambda _: Ownership.of(shards, SEED, view), target=50),
            megabytes("peak memory, leave", _nothing, lambda _: warm.leave(workers // 2), target=50),
        ],
    )


def _ring() -> Table:
    workers, shards = LARGE
    names = _names(workers)
    ring = Ring(names)
    return Table(
        "ring-v1, 150 virtual nodes: the same by names",
        [
            milliseconds("cold, 1,000 × 100,000", _nothing, lambda _: Ring(names).owners(shards, SEED)),
            milliseconds("cold, 1,000 × 10,000", _nothing, lambda _: Ring(names).owners(10_000, SEED)),
            milliseconds("leave, 1,000 × 100,000", _nothing, lambda _: ring.leave(names[500]).owners(shards, SEED)),
            milliseconds("join, 1,000 × 100,000", _nothing, lambda _: ring.join("newcomer").owners(shards, SEED)),
            megabytes("peak memory, cold", _nothing, lambda _: Ring(names).owners(shards, SEED)),
        ],
    )


def _balance() -> Table:
    """The load of the fullest and of the emptiest worker over the mean; the promise is one shard."""
    rows: list[Row] = []
    for workers in (8, 100, 1_000):
        shards, mean = 10_007, 10_007 / workers
        slots = Ownership.of(shards, SEED, View.declared(workers)).loads()
        ring = np.bincount(Ring(_names(workers)).owners(shards, SEED), minlength=workers)
        for name, loads, target in (("slots", slots, (mean + 1) / mean), ("ring", ring, None)):
            most, least = float(loads.max()) / mean, float(loads.min()) / mean
            rows.append(Row(f"{name}, {workers:,} workers: fullest / mean", most, most, "", target))
            rows.append(Row(f"{name}, {workers:,} workers: emptiest / mean", least, least, ""))
    return Table("Balance of 10,007 shards", rows)


def _assignment(strategy: Strategy) -> Table:
    """Every worker's list of assignments, from nothing; the targets are those of slots, the default."""
    rows: list[Row] = []
    cases = (
        (1_000, 10, 1.2, 8.0),
        (10_000, 100, 8.4, 42.0),
        (10_000, 1_000, 10.0, None),
        (100_000, 1_000, 92.0, 380.0),
    )
    for shards, workers, most_ms, most_mb in cases:
        what = f"{shards:,} shards to {workers:,} workers"
        given = strategy == "slots"

        def make(shards: int = shards, workers: int = workers) -> ShardManager:
            return _manager(strategy, shards, workers)

        rows.append(milliseconds(what, make, ShardManager.rebalance_shards, target=most_ms if given else None))
        rows.append(megabytes(what, make, ShardManager.rebalance_shards, target=most_mb if given else None))
    return Table(f"ShardManager(strategy={strategy!r}): full assignment, shuffled", rows)


def _batches() -> Table:
    order = ElasticOrder(ShardLayout(1_281_167, 10_000), SEED, 0, True, 4_096)
    return Table(
        "Elastic order, 1,281,167 samples, batches of 4,096",
        [
            milliseconds("a whole batch", _nothing, lambda _: order.batch(17)),
            milliseconds("one rank of 64", _nothing, lambda _: order.places(17, 31, 64)),
        ],
    )


def _manager(strategy: Strategy, shards: int, workers: int) -> ShardManager:
    manager = ShardManager(strategy)
    for name in _names(workers):
        manager.register_worker(name)
    manager.register_dataset_params("imagenet", shards * 100, 100, shuffle=True, seed=SEED)
    return manager


def _names(count: int) -> list[str]:
    return [f"worker-{index}" for index in range(count)]


def _nothing() -> None:
    """For what needs nothing made anew for each run."""
