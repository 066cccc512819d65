"""`StrataWriter`: torch.distributed.checkpoint writes to a Strata storage, and its save is a commit.

    coordinating rank    prepare_global_plan    decides where the save goes, and tells all ranks in their plans
    all ranks            write_data             write their part: files, then, but for the coordinating rank, what they
                                                hold
    coordinating rank    finish                 looks whether the parts are all of the state, and commits

A crash anywhere leaves the checkpoint before; what it wrote is removed by the next save.
"""

import asyncio
import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from strata import background
from strata.checkpoint.arena import Arena
from strata.checkpoint.attempt import Attempt
from strata.checkpoint.given import checked_metrics, whole_number
from strata.checkpoint.leftovers import giving_back
from strata.checkpoint.lineage import Term, attempt_name, read_lineage
from strata.checkpoint.manager import Where, _with
from strata.checkpoint.manifest import Part, PartRef
from strata.checkpoint.preparing import Planner
from strata.checkpoint.saving import declare, write_tree
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.shares import Crew
from strata.checkpoint.staging import Stage
from strata.checkpoint.store import Folder
from strata.checkpoint.watched import watched
from strata.errors import InvalidInput, RankFailed
from strata.integrations.dcp.places import Begun, Run, is_step, run_at, step_of
from strata.integrations.dcp.stating import Stated, completed, path_of, state_of, stated

MEMORY_BYTES = 256 << 20
"""For what is on its way to the storage: the state itself stays where it is until it is written."""
TOLD = 5


class Ticket(NamedTuple):
    """What a rank is told: its part of which save, and how many ranks take part."""

    attempt: Attempt
    ranks: int


class Told(NamedTuple):
    """What a rank says of an item: where that stands in the state, and the part that holds it. None is the coordinating
    rank's own, which is not declared yet."""

    stated: Stated
    part: PartRef | None


class StrataWriter(StorageWriter):
    """Saves to the checkpoints of a job, where `CheckpointManager(url)` would.

    url, backend, job_id: as CheckpointManager takes them. step: of this save; `checkpoint_id` of dcp.save may say it,
    too: 1000, or a path that ends in step_1000. epoch, metrics: go with it. keep_count: how many of the latest to keep;
    all, if nothing is said here or in `config`, of which `retention`, `memory_bytes` and `stuck_seconds` count here.
    """

    def __init__(
        self,
        url: Where | None = None,
        step: int | None = None,
        *,
        epoch: int = 0,
        metrics: Mapping[str, float] | None = None,
        keep_count: int | None = None,
        job_id: str | None = None,
        backend: str | None = None,
        config: CheckpointManagerConfig | None = None,
    ) -> None:
        super().__init__()
        self._place = (url, backend, job_id)
        self._step = None if step is None else whole_number(step, "step")
        self._epoch, self._metrics = whole_number(epoch, "epoch"), checked_metrics(metrics)
        self._config = _with(config or CheckpointManagerConfig(), keep_count, None)
        if self._config.incremental:
            raise InvalidInput("torch.distributed.checkpoint saves are always whole: leave out incremental")
        self._run = run_at(*self._place)
        self._forget()

    def __repr__(self) -> str:
        return f"StrataWriter({self._run.checkpoints.where!r}, step={self._step})"

    def _forget(self) -> None:
        self._begun: Begun | None = None
        self._dropping: weakref.finalize[..., StrataWriter] | None = None
        self._part: Part | None = None
        self._ranks = 1
        self._rank = 0

    # -- to another process, for AsyncCheckpointerType.PROCESS -------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_place", "_step", "_epoch", "_metrics", "_config")
        return {name: self.__dict__[name] for name in kept} | {"returned": self._run.hand_over()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        returned = state.pop("returned")
        self.__dict__.update(state)
        self._run = run_at(*self._place)
        self._forget()
        if returned is not None:
            self._run.loaded(returned, None)

    # -- what torch calls, in its order ------------------------------------------------------------------------------

    def reset(self, checkpoint_id: Any = None) -> None:
        self._end_what_was_before()
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._end_what_was_before()
        self._rank = kwargs.get("rank") or 0
        if not kwargs.get("use_collectives", True) and _world_size() > 1:
            raise InvalidInput("without use_collectives no rank knows whether the others have saved: leave it on")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._step is None:
            raise InvalidInput("nobody said which step is saved: StrataWriter(url, step=1000), or checkpoint_id=1000")
        if getattr(plan, "usable", True):
            self._run.order = {path_of(item, plan): place for place, item in enumerate(plan.items)}
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        assert self._step is not None
        begun = background.run(self._run.open(self._step, self._epoch, self._metrics, self._config))
        self._begun, self._ranks = begun, len(plans)
        # Whoever drops the writer of a save that failed elsewhere will not begin another with it.
        self._dropping = weakref.finalize(self, _drop, self._run, begun)
        self._dropping.atexit = False
        return [
            replace(plan, storage_data=Ticket(begun.attempt._replace(rank=self._part_of(rank)), len(plans)))
            for rank, plan in enumerate(plans)
        ]

    def _part_of(self, rank: int) -> int:
        """The first part says where everything stands, so it is the coordinating rank's."""
        if rank == self._rank:
            return 0
        return self._rank if rank == 0 else rank

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        begun, written = self._begun, []
        try:
            attempt = begun.attempt if begun is not None else self._attempt(plan)
            if plan.items or begun is not None:
                written = self._write(plan, planner, attempt)
        except BaseException as error:
            if begun is not None:
                background.run(self._run.give_up(begun, error))
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        begun, own = self._begun, self._part
        if begun is None or own is None:
            raise InvalidInput(f"{self._what} was not begun here: no rank but the coordinating one may finish it")
        try:
            said = [result for many in results for result in many]
            _check_told(metadata, said)
            told: list[Told] = [result.storage_data for result in said]
            others = {each.part.rank: each.part for each in told if each.part is not None}
            part = completed(own, [each.stated for each in told], self._run.order)
        except BaseException as error:
            background.run(self._run.give_up(begun, error))
            raise
        parts = [others[rank] for rank in sorted(others)]
        background.run(self._run.finish(begun, part, parts, self._ranks))
        self._let_go()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return is_step(checkpoint_id)

    # -- a rank's part -----------------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"the save of step {self._step} to {self._run.checkpoints.where}"

    def _attempt(self, plan: SavePlan) -> Attempt:
        """The one that this rank was told of. A planner that keeps its plans gives the same one again for the next
        save: then it is known whose it is, and how it is called is not."""
        ticket = plan.storage_data
        if not isinstance(ticket, Ticket):
            raise InvalidInput("the planner has lost what the coordinating rank said of this save in storage_data")
        self._ranks, told, step = ticket.ranks, ticket.attempt, self._step
        assert step is not None
        if (told.name, told.rank) not in self._run.written:
            if told.folder.step != step:
                raise InvalidInput(f"the coordinating rank saves step {told.folder.step}, and this one step {step}")
            return told
        looking = self._run.store.is_committed(Folder(step))
        is_taken = background.run(watched(looking, self._what, self._config.stuck_seconds))
        folder = Folder(step, told.term.term) if is_taken else Folder(step)
        return told._replace(folder=folder, name=attempt_name(told.term))

    def _write(self, plan: SavePlan, planner: SavePlanner, attempt: Attempt) -> list[WriteResult]:
        self._run.written.add((attempt.name, attempt.rank))
        state = state_of(plan, planner)
        prepared = Planner(Crew(attempt.rank, self._ranks)).prepare(state)
        items = stated(state, prepared)
        memory, storage = Arena(self._config.memory_bytes or MEMORY_BYTES), self._run.store.storage
        stage = Stage(prepared, memory, background.loop(), beside=storage.stream_bytes)
        writing = asyncio.run_coroutine_threadsafe(self._written(stage, attempt), background.loop())
        try:
            stage.fill(alone=False)
        except BaseException as error:
            if not stage.is_given_up(error):
                with suppress(Exception):
                    writing.result()
                raise
        reference = writing.result()
        return [
            WriteResult(item.index, _size_of(item), Told(items[path_of(item, plan)], reference)) for item in plan.items
        ]

    async def _written(self, stage: Stage, attempt: Attempt) -> PartRef | None:
        try:
            return await watched(self._write_part(stage, attempt), self._what, self._config.stuck_seconds)
        except BaseException as error:
            stage.give_up(error)
            raise

    async def _write_part(self, stage: Stage, attempt: Attempt) -> PartRef | None:
        store = self._run.store
        if self._begun is None:
            await self._check_shared(attempt.term)
        async with giving_back(store, attempt):
            part = await write_tree(store, attempt, stage, lambda count: None)
            if self._begun is None:
                return await declare(store, attempt, part)
        self._part = part
        return None

    async def _check_shared(self, term: Term) -> None:
        """The coordinating rank has begun its term where all ranks look, before it told them."""
        newest = (await read_lineage(self._run.store)).newest
        if newest is None or newest.term < term.term:
            raise InvalidInput(
                f"a rank on {socket.gethostname()} does not see what the coordinating rank, {term.writer}, writes to "
                f"{self._run.checkpoints.where}: all ranks must have the same storage there, and this is another"
            )

    def _end_what_was_before(self) -> None:
        """A save of which no end came failed elsewhere: torch tells its caller so, and not the writer."""
        begun = self._let_go()
        if begun is not None:
            background.run(self._run.give_up(begun, _unfinished(begun)))

    def _let_go(self) -> Begun | None:
        begun, self._begun, self._part = self._begun, None, None
        if self._dropping is not None:
            self._dropping.detach()
            self._dropping = None
        return begun


def _drop(run: Run, begun: Begun) -> None:
    with suppress(RuntimeError):  # Python ends
        asyncio.run_coroutine_threadsafe(run.give_up(begun, _unfinished(begun)), background.loop())


def _unfinished(begun: Begun) -> RankFailed:
    return RankFailed(f"the save of step {begun.attempt.folder.step} did not come to its end on all ranks")


def _check_told(metadata: Metadata, said: list[WriteResult]) -> None:
    there = {result.index.fqn for result in said}
    missing = [name for name in metadata.state_dict_metadata if name not in there]
    if missing:
        raise RankFailed(f"no rank has written {', '.join(missing[:TOLD])}, which the plan has: nothing is committed")


def _size_of(item: WriteItem) -> int:
    told = item.tensor_data
    return 0 if told is None else prod(told.chunk.sizes) * told.properties.dtype.itemsize


def _world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
