"""Where checkpoints lie, and what this process has to do with them from one `dcp.save` to the next.

Writers and readers of torch.distributed.checkpoint are made anew for each call; the run that saves is not. So what a
`CheckpointManager` knows is kept here for each place: the term of this process, the step that it has loaded, and what
a save that came to nothing has left.
"""

import os
import re
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from strata import background
from strata.checkpoint.arena import Arena
from strata.checkpoint.attempt import Attempt
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.committing import commit
from strata.checkpoint.foreign.items import Path
from strata.checkpoint.given import whole_number
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.leftovers import giving_back, is_refusal
from strata.checkpoint.manager import Where
from strata.checkpoint.manifest import Part, PartRef
from strata.checkpoint.saver import Saver, _Save
from strata.checkpoint.saving import declare
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.store import Store
from strata.checkpoint.together import together
from strata.checkpoint.watched import watched
from strata.checkpoint.whole import whole_of
from strata.core.ids import DEFAULT_JOB
from strata.errors import CheckpointDamaged, InvalidInput, RankFailed, StrataError
from strata.storage import StorageBackend, open_storage

READS_AT_ONCE = 16
_STEP = re.compile(r"(?:.*/)?(?:step[-_=]?)?(\d{1,19})/?")


class Begun:
    """A save that the coordinating rank has begun, and that is not over."""

    def __init__(self, save: _Save, attempt: Attempt, config: CheckpointManagerConfig, claim: AsyncExitStack) -> None:
        self.save, self.attempt, self.config, self.claim = save, attempt, config, claim
        self.is_decided = False
        """Whether it may be committed, whatever the storage says."""
        self.is_over = False


class Run(Saver):
    """What this process saves to one place: parts that others have planned. Its methods belong on the loop."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        super().__init__(checkpoints, CheckpointManagerConfig(), Arena(0))
        self.checkpoints = checkpoints
        self._abandoned: set[str] = set()
        self.written: set[tuple[str, int]] = set()
        """Attempts that this process has written a part of: none is written to twice."""
        self.order: dict[Path, int] = {}
        """The places of items in the state. A planner that keeps its plans says them once."""

    @property
    def store(self) -> Store:
        return self.checkpoints.store

    @property
    def is_forked(self) -> bool:
        """Whether it is that of the process that this one was forked from."""
        return os.getpid() != self._process

    def hand_over(self) -> int | None:
        """The step that the next save goes on from, if one was loaded since the last: to the process that saves it."""
        returned, self._returned = self._returned, None
        return returned

    async def open(self, step: int, epoch: int, metrics: dict[str, float], config: CheckpointManagerConfig) -> Begun:
        """Decide where a save goes."""
        self._check_usable()
        self._check_failures(hurried=False)
        save = _Save(SaveHandle(step), None, None, epoch, metrics, time.perf_counter(), hurried=False)
        async with AsyncExitStack() as claim:
            try:
                claiming = claim.enter_async_context(self._claimed(save))
                attempt = await watched(claiming, f"beginning {self._named(step)}", config.stuck_seconds)
            except BaseException as error:
                self._failed(save.handle, error)
                raise
            return Begun(save, attempt, config, claim.pop_all())

    def _named(self, step: int) -> str:
        return f"the save of step {step} to {self.checkpoints.where}"

    async def _attempt(self, save: _Save) -> Attempt:
        attempt = await super()._attempt(save)
        if self._abandoned:  # here no save of this process has a file yet that it means to keep
            await self.checkpoints.sweep(self._abandoned)
            self._abandoned.clear()
        return attempt

    async def finish(self, begun: Begun, own: Part, others: Sequence[PartRef], ranks: int) -> None:
        """Commit it: this rank's part, which says where everything stands, and those of others."""
        what = f"committing {self._named(begun.attempt.folder.step)}"
        try:
            await watched(self._commit_all(begun, own, others, ranks), what, begun.config.stuck_seconds)
        except BaseException as error:
            await self.give_up(begun, error, is_certain=not begun.is_decided or is_refusal(error))
            raise
        await self._over(begun)
        begun.save.handle.report.durable_seconds = time.perf_counter() - begun.save.began
        self._failures = 0
        self.telling.committed(begun.save.handle.report)
        begun.save.handle.committed()
        self._config = begun.config  # which says what is kept
        await self._retain()

    async def _commit_all(self, begun: Begun, own: Part, others: Sequence[PartRef], ranks: int) -> None:
        attempt, report = begun.attempt, begun.save.handle.report
        async with giving_back(self.store, attempt):
            _check_places(attempt, others)
            references = [await declare(self.store, attempt, own), *others]
            parts = [own, *await self._read(others)]
            self._check_whole(attempt, parts)
        report.tensors = sum(len(part.tensors) for part in parts)
        report.written_bytes = report.state_bytes = sum(each.written_bytes for each in references)
        begun.is_decided = True
        if await commit(self.store, attempt, parts, references, ranks) != attempt.folder:
            self.checkpoints.sweep_later(attempt.folder)

    async def give_up(self, begun: Begun, error: BaseException, *, is_certain: bool = True) -> None:
        """It comes to nothing. What others have written of it goes when the next one begins, unless it may yet turn out
        that it was committed."""
        if begun.is_over:
            return
        await self._over(begun)
        if is_certain:
            self._abandoned |= {begun.attempt.folder.name, begun.attempt.own_folder.name}
        self._failed(begun.save.handle, error)

    async def _over(self, begun: Begun) -> None:
        begun.is_over = True
        await begun.claim.aclose()

    async def _read(self, references: Sequence[PartRef]) -> list[Part]:
        found: dict[int, Part] = {}

        async def read(some: Sequence[PartRef]) -> None:
            for each in some:
                found[each.rank] = await self.store.part(each)

        await together(read(references[first::READS_AT_ONCE]) for first in range(READS_AT_ONCE))
        return [found[each.rank] for each in references]

    def _check_whole(self, attempt: Attempt, parts: Sequence[Part]) -> None:
        try:
            whole_of(parts, 0, f"{self.checkpoints.where}/{attempt.folder.name}")
        except CheckpointDamaged as error:
            raise InvalidInput(
                f"nothing is committed, since the ranks' parts are not a whole state. {error}"
            ) from error


def _check_places(attempt: Attempt, references: Sequence[PartRef]) -> None:
    for each in references:
        if not each.path.startswith(f"{attempt.folder.name}/part-{each.rank}-"):
            raise RankFailed(
                f"rank {each.rank} has written to {each.path}, and this save goes to {attempt.folder.name}: it was "
                "given the plan of an earlier save. Make the planner without enable_plan_caching"
            )


_runs: dict[tuple[object, str], Run] = {}
_lock = threading.Lock()


def run_at(where: Where | None, backend: str | None, job_id: str | None) -> Run:
    """What this process has to do with that place: the same each time."""
    job = job_id or os.environ.get("STRATA_JOB_ID") or DEFAULT_JOB
    if isinstance(where, StorageBackend):
        return _known((where, job), where)
    storage = open_storage(where, backend=backend)
    run = _known((storage.url, job), storage)
    if run.store.storage.inner is not storage:
        background.run_while_alive(storage.close)
    return run


def _known(key: tuple[object, str], storage: StorageBackend) -> Run:
    with _lock:
        found = _runs.get(key)
        if found is None or found.is_forked:
            found = _runs[key] = Run(Checkpoints(Store(storage, key[1])))
        return found


def step_of(checkpoint_id: str | os.PathLike[str] | int) -> int:
    """The step that a `checkpoint_id` names."""
    if isinstance(checkpoint_id, int):
        return whole_number(checkpoint_id, "checkpoint_id")
    found = _STEP.fullmatch(os.fspath(checkpoint_id))
    if found is None:
        raise InvalidInput(
            f"the checkpoint_id {checkpoint_id!r} names no step: say 1000, or something that ends in step_1000"
        )
    return int(found[1])


def is_step(checkpoint_id: str | os.PathLike[str]) -> bool:
    with suppress(StrataError, TypeError):
        return step_of(checkpoint_id) >= 0
    return False
