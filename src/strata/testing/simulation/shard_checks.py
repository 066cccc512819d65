"""Shards: loads stay within one, only what must move moves, and a shard has one live holder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.core.events import CoordinatorStarted, Event
from strata.core.machine import Machine
from strata.core.records import Record, ViewChanged, WorldDeclared
from strata.core.state import Job
from strata.testing.simulation.violation import Violation

if TYPE_CHECKING:
    from strata.testing.simulation.freerun import FreerunTrainer


class ShardChecks:
    """Looks at every change of a view, and now and then at what everybody holds."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._owners: dict[tuple[str, str, int], np.ndarray[Any, np.dtype[np.int64]]] = {}

    def decided(self, machine: Machine, event: Event, records: list[Record]) -> None:
        """Loads stay within one shard, and only what must move moves."""
        if machine is not self._machine or isinstance(event, CoordinatorStarted):
            self._machine, self._owners = machine, {}
        changes: dict[str, list[ViewChanged]] = {}
        for record in records:
            if type(record) is WorldDeclared:
                self._owners = {key: owners for key, owners in self._owners.items() if key[0] != record.job}
            elif type(record) is ViewChanged:
                changes.setdefault(record.job, []).append(record)
        for name, views in changes.items():
            self._check_view(machine, machine.state.jobs[name], views)

    def _check_view(self, machine: Machine, job: Job, views: list[ViewChanged]) -> None:
        for name in sorted(job.datasets):
            dataset = job.datasets[name]
            key = (job.job, name, dataset.version)
            owners = machine.volatile.ownerships.of(job.job, dataset, job.world.view).owners()
            before, self._owners[key] = self._owners.get(key), owners
            self._check_loads(job.world.view.ranks, owners)
            if before is not None and len(views) == 1:
                self._check_moves(views[0], before, owners)

    def _check_loads(self, ranks: tuple[int, ...], owners: Any) -> None:
        if ranks:
            loads = np.bincount(owners, minlength=max(ranks) + 1)[list(ranks)]
            if loads.sum() != len(owners) or loads.max() - loads.min() > 1:
                raise Violation("loads", f"shards by rank: {loads.tolist()}")

    def _check_moves(self, view: ViewChanged, before: Any, after: Any) -> None:
        moved = before != after
        fine = (after[moved] == view.rank).all() if view.joined else ((before == view.rank) == moved).all()
        if not fine:
            what = "joined" if view.joined else "left"
            raise Violation("moves", f"rank {view.rank} {what}, and shards moved that did not have to")

    def check_owners(self, standby: Machine) -> None:
        """In a world of whoever joins, shards divide over those that are there, and over nobody else."""
        for job in standby.state.jobs.values():
            there = job.world.by_rank.keys() - set(job.world.draining)
            if not job.world.declared and job.world.view.slots.keys() != there:
                raise Violation("owners", f"{job.job}: shards go to {job.world.view.ranks}, there are {sorted(there)}")

    def check_holders(self, standby: Machine, processes: Iterable[FreerunTrainer]) -> None:
        """At any time a shard of an epoch is in the hands of at most one live worker."""
        holders: dict[tuple[int, int, int], str] = {}
        for process in processes:
            member = standby.state.jobs[process.job].world.members.get(process.worker)
            live = member is not None and member.incarnation == process.incarnation and not member.gone
            if not (live and process.alive and process.has_lease and process.phase == "training"):
                continue
            for shard in process.unfinished():
                other = holders.setdefault((process.version, process.epoch, shard), process.worker)
                if other != process.worker:
                    raise Violation("one owner", f"shard {shard} is held by {other} and by {process.worker}")
