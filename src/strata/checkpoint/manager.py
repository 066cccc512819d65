"""`CheckpointManager` and `CheckpointReader`: what users hold in their hands. Each call has a blocking form and one to
be awaited, and both do their work on the private loop."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import msgspec

from strata import background
from strata.checkpoint.arena import Arena
from strata.checkpoint.budget import Budget, default_budget
from strata.checkpoint.checkpoints import Checkpoints, Looked, Survey, unheeded
from strata.checkpoint.crewsaver import CrewSaver
from strata.checkpoint.defaults import tell_of_defaults
from strata.checkpoint.given import whole_number
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.localcopies import CopiedCheckpoints, LocalCopies
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.matching import Keys, Load, LoadReport, Rename
from strata.checkpoint.opened import Opened
from strata.checkpoint.readers import CheckpointGone
from strata.checkpoint.runnames import common_run, known_run
from strata.checkpoint.saver import Saver
from strata.checkpoint.saving import Report
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.slices import Index
from strata.checkpoint.standing import Standing, look_around
from strata.checkpoint.stateful import Plan, is_stateful
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.telling import Listener
from strata.checkpoint.tieredsaver import TieredSaver
from strata.checkpoint.tiers import Tiers, checked_local
from strata.checkpoint.uploader import Uploader
from strata.checkpoint.watched import STUCK_SECONDS, watched
from strata.checkpoint.words import Words
from strata.config import Config, place_in_world
from strata.core.events import Position
from strata.core.ids import DEFAULT_JOB, check_callable, check_int, check_name, check_seconds, check_text, check_texts
from strata.errors import CheckpointDamaged, InvalidInput, NotFound, Refused, StrataError
from strata.storage import StorageBackend, open_storage
from strata.storage.urls import is_default

if TYPE_CHECKING:  # needs gRPC
    from strata.checkpoint.joining import Seat
    from strata.session import Session

T = TypeVar("T")
LATEST_TRIES = 5
"""So often the latest is looked for again that was deleted the moment before."""
Where: TypeAlias = str | os.PathLike[str] | StorageBackend
"""A URL, a folder, or a storage that is open already, and stays so."""


class CheckpointReader:
    """The checkpoints of a job, to be read, also beside the job that writes them: a mark keeps what is being read from
    being deleted meanwhile. Changes nothing else.

    local: the folder of a local tier before `path`. What is whole there is read from there. rank: of what each rank
    saved of its own, whose is given.
    """

    def __init__(
        self,
        path: Where | None = None,
        backend: str | None = None,
        *,
        job_id: str | None = None,
        local: Where | None = None,
        rank: int = 0,
    ) -> None:
        self._owned: list[StorageBackend] = []
        check_texts(job_id=job_id)
        job = job_id or os.environ.get("STRATA_JOB_ID") or DEFAULT_JOB
        store = Store(self._opened(path, "path", backend), job)
        near = None if local is None else Store(checked_local(self._opened(local, "local"), store.storage), job)
        self._tiers = None if near is None else Tiers(near, store)
        self._checkpoints: Checkpoints = self._tiers or Checkpoints(store)
        self._checkpoints.act_as(check_int(rank, "rank"))
        self._stuck_seconds: float | None = STUCK_SECONDS
        self.last_load = LoadReport()
        """What did not fit when something was last loaded with strict=False."""
        self.loaded_step: int | None = None
        """Of the state that was loaded last: the latest may be another by now."""

    def _opened(self, where: Where | None, what: str, backend: str | None = None) -> StorageBackend:
        if isinstance(where, StorageBackend):
            return where
        if where is not None and not isinstance(where, str | os.PathLike):
            raise InvalidInput(f"{what} must be a URL, a path or a storage, not {type(where).__name__}")
        if where == "":
            raise InvalidInput(f"{what} must not be empty")
        self._owned.append(open_storage(where, backend=backend))
        return self._owned[-1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._checkpoints.where!r})"

    @property
    def url(self) -> str:
        """Where the checkpoints lie."""
        return self._checkpoints.where

    def load(  # noqa: PLR0917  the contract's own order
        self,
        step: int | None = None,
        keys: Keys | None = None,
        into: Any = None,
        like: Any = None,
        rename: Rename | None = None,
        strict: bool = True,
        timeout: float | None = STUCK_SECONDS,
    ) -> Any:
        """The state of a step, or the latest. Damage is an error, and never falls back to another.

        keys: only tensors whose names match one of these patterns. into: a state whose arrays are filled in place, or
        an object that takes its state back, such as a TrainState; it is what is returned then. like: a template, whose
        arrays need no data; new ones are made, each of its template's package and on its device. rename: names in the
        checkpoint to names here. strict: whether anything that does not fit is an error; else see `last_load`.
        timeout: the longest that nothing may come of a call to the storage; the error names it.
        """
        load = Load(step, keys, into, like, rename, strict)
        if not is_stateful(into):
            return background.run(self._load(load, timeout))
        opened = background.run(self._open(load, timeout))
        try:
            plan = opened.plan(into, rename)
            plan.apply(background.run(self._read(opened, plan, load, timeout)))
        finally:
            background.run(opened.close())
        self._restored(opened)
        return into

    async def load_async(  # noqa: PLR0917  as above
        self,
        step: int | None = None,
        keys: Keys | None = None,
        into: Any = None,
        like: Any = None,
        rename: Rename | None = None,
        strict: bool = True,
        timeout: float | None = STUCK_SECONDS,
    ) -> Any:
        load = Load(step, keys, into, like, rename, strict)
        if not is_stateful(into):
            return await background.awaited(self._load(load, timeout))
        opened = await background.awaited(self._open(load, timeout))
        try:
            plan = opened.plan(into, rename)
            plan.apply(await background.awaited(self._read(opened, plan, load, timeout)))
        finally:
            await background.awaited(opened.close())
        self._restored(opened)
        return into

    async def _open(self, load: Load, timeout: float | None) -> Opened:
        load.check()
        work = self._going_on_at(load, self._checkpoints.open)
        return await watched(work, f"loading {self._named(load.step)}", timeout)

    async def _at(
        self,
        step: int | None,
        use: Callable[[Folder], Awaitable[T]],
        looked: Looked = unheeded,
    ) -> T:
        """Use the checkpoint of this step, or the latest: one that is deleted at that moment is not it any more.
        `looked` is told what was there when it was looked for."""
        step = None if step is None else whole_number(step, "step")

        async def found() -> Folder:
            survey = await self._checkpoints.survey()
            looked(survey)
            return await self._checkpoints.find_in(survey, step)

        for _ in range(LATEST_TRIES if step is None else 1):
            with suppress(CheckpointGone):
                return await use(await found())
        return await use(await found())

    async def _going_on_at(self, load: Load, use: Callable[[Folder], Awaitable[T]]) -> T:
        """The same for a state that is gone on from: others may have a say in which it is."""
        return await self._at(load.step, use)

    async def _read(self, opened: Opened, plan: Plan, load: Load, timeout: float | None) -> Any:
        return await watched(opened.read(plan, load.strict), f"loading {self._named(load.step)}", timeout)

    def _restored(self, opened: Opened) -> None:
        self.last_load = opened.report
        self._loaded(opened.folder.step)

    async def _load(self, load: Load, timeout: float | None) -> Any:
        load.check()
        work = self._going_on_at(load, lambda folder: self._loaded_from(folder, load))
        folder, state = await watched(work, f"loading {self._named(load.step)}", timeout)
        if load.keys is None:  # who takes a part of it does not go on from there
            self._loaded(folder.step)
        return state

    async def _loaded_from(self, folder: Folder, load: Load) -> tuple[Folder, Any]:
        state, self.last_load = await self._checkpoints.load(folder, load)
        return folder, state

    def _named(self, step: int | None) -> str:
        return f"{'the latest checkpoint' if step is None else f'step {step}'} of {self.url}"

    def load_slice(
        self, name: str, index: Index = ..., step: int | None = None, timeout: float | None = STUCK_SECONDS
    ) -> Any:
        """A part of one tensor, by its name: `load_slice("model/embedding", np.s_[:1000])`. The rest is not read."""
        return background.run(self._load_slice(name, index, step, timeout))

    async def load_slice_async(
        self, name: str, index: Index = ..., step: int | None = None, timeout: float | None = STUCK_SECONDS
    ) -> Any:
        return await background.awaited(self._load_slice(name, index, step, timeout))

    async def _load_slice(self, name: str, index: Index, step: int | None, timeout: float | None) -> Any:
        check_text(name, "name")
        work = self._at(step, lambda folder: self._checkpoints.load_slice(folder, name, index))
        return await watched(work, f"loading {name!r} from {self._named(step)}", timeout)

    def _loaded(self, step: int) -> None:
        """Whoever saves goes on from there."""
        self.loaded_step = step

    async def _in_time(self, work: Callable[[], Coroutine[Any, Any, T]], doing: str) -> T:
        """What has no timeout of its own is given up, too, when a call to the storage is stuck."""
        return await watched(work(), f"{doing} of {self.url}", self._stuck_seconds)

    def list_checkpoints(self) -> list[int]:
        """The steps that can be gone back to, in order."""
        return background.run(self._in_time(self._steps, "listing the checkpoints"))

    async def list_checkpoints_async(self) -> list[int]:
        return await background.awaited(self._in_time(self._steps, "listing the checkpoints"))

    async def _steps(self) -> list[int]:
        return sorted(await self._checkpoints.line())

    def latest_step(self) -> int | None:
        """None if there is no checkpoint."""
        return background.run(self._in_time(self._latest, "looking for the latest checkpoint"))

    async def latest_step_async(self) -> int | None:
        return await background.awaited(self._in_time(self._latest, "looking for the latest checkpoint"))

    async def _latest(self) -> int | None:
        latest = await self._checkpoints.latest()
        return None if latest is None else latest.step

    def describe(self, step: int | None = None) -> Metadata:
        """What a checkpoint says of itself."""
        return background.run(self._in_time(lambda: self._describe(step), "describing a checkpoint"))

    async def describe_async(self, step: int | None = None) -> Metadata:
        return await background.awaited(self._in_time(lambda: self._describe(step), "describing a checkpoint"))

    async def _describe(self, step: int | None) -> Metadata:
        return await self._at(step, self._checkpoints.metadata)

    def verify(self, step: int | None = None, timeout: float | None = STUCK_SECONDS) -> int:
        """Read every byte of a checkpoint and compare; how many there were. CheckpointDamaged names what is wrong."""
        return background.run(self._verify(step, timeout))

    async def verify_async(self, step: int | None = None, timeout: float | None = STUCK_SECONDS) -> int:
        return await background.awaited(self._verify(step, timeout))

    async def _verify(self, step: int | None, timeout: float | None) -> int:
        return await watched(self._at(step, self._checkpoints.verify), f"verifying {self._named(step)}", timeout)

    def close(self) -> None:
        """Let go of what was opened here."""
        for storage in self._owned:
            background.run_while_alive(storage.close)

    async def close_async(self) -> None:
        await asyncio.to_thread(self.close)

    def tiers(self) -> Standing:
        """Where each checkpoint is: on the local disk, behind it, or on its way."""
        return background.run(self._in_time(self._standing, "looking where the checkpoints are"))

    async def tiers_async(self) -> Standing:
        return await background.awaited(self._in_time(self._standing, "looking where the checkpoints are"))

    async def _standing(self) -> Standing:
        return await look_around(self._checkpoints, self._uploader)

    @property
    def _uploader(self) -> Uploader | None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()


class CheckpointManager(CheckpointReader):
    """Saves and loads the checkpoints of a job.

    path: a URL, or a folder; with `backend`, a prefix in the bucket that CHECKPOINT_BUCKET names; without both the
    environment decides, and where it says nothing that is a folder in /tmp. job_id: whose checkpoints these are: the
    same over restarts of a run, and another for another run in the same place, since the later start of a job
    supersedes the earlier. By default STRATA_JOB_ID, else `default`, which all runs without one share.
    keep_count: how many of the latest to keep; all, if nothing is said here or in `config`.
    incremental: refer to what did not change since the checkpoint before, and write the rest.
    local: a folder on a fast disk of this machine. Checkpoints are saved there first, and go on to `path` from there;
    those of several ranks go to both at once, and are loaded from there.
    coordinator_url: where the coordinator of the job is; if nothing is said, this process takes part in the job as its
    orchestrator does, if it has one, and else in that of COORDINATOR_URL. None for "".
    rank, world_size: of this process in its job, if each of its ranks saves a part; then all of them must save, the
    same steps in the same order. run_id: the name of this start of all ranks, which keeps what they say to each other
    apart from what was said in any other: the same on all ranks, and new at each start. By default STRATA_RUN_ID; else
    one that rank 0 makes up and sends to the others, if torch.distributed is initialized (so make the manager on all
    ranks); else that of Slurm's job step. With none of these, and several ranks, InvalidInput.
    """

    def __init__(
        self,
        path: Where | None = None,
        backend: str | None = None,
        keep_count: int | None = None,
        *,
        config: CheckpointManagerConfig | None = None,
        job_id: str | None = None,
        incremental: bool | None = None,
        local: Where | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        run_id: str | None = None,
        coordinator_url: str | None = None,
    ) -> None:
        said: dict[str, Any] = {"config": config, "job_id": job_id, "incremental": incremental, "local": local}
        self._like_this: Callable[[], CheckpointManager] = partial(type(self), path, backend, keep_count, **said)
        check_texts(job_id=job_id, coordinator_url=coordinator_url)
        settings = Config({"coordinator_url": coordinator_url or None}, os.environ)
        is_unsaid = coordinator_url is None and rank is None and world_size is None
        session = _orchestrators(job_id) if is_unsaid else None
        if session is not None:
            job_id, (rank, world_size, run_id) = session.who.job, _place_in(session, run_id)
        is_coordinated = session is not None or (coordinator_url != "" and bool(settings["coordinator_url"]))
        is_given = rank is not None and world_size is not None
        rank, world_size = place_in_world(rank, world_size, settings if is_coordinated else None)
        is_crew = world_size > 1 or is_coordinated
        super().__init__(path, backend, job_id=job_id, local=None if is_crew else local)
        if is_crew and local is not None:
            self._checkpoints = self._with_copies(local)
        self._checkpoints.act_as(rank, world_size)
        self._looked: Survey | None = None
        """What was there when the state that was asked for last was looked for."""
        self.config = _with(CheckpointManagerConfig() if config is None else config, keep_count, incremental)
        self._stuck_seconds = self.config.stuck_seconds
        budget = self.config.memory_bytes
        self.budget = Budget(budget, "as configured") if budget is not None else default_budget()
        arena = Arena(self.budget.bytes)
        if not rank:
            tell_of_defaults(
                self.url,
                is_default_job=not (job_id or os.environ.get("STRATA_JOB_ID")),
                is_default_path=is_default(path, backend, os.environ),
            )
        run = None
        if is_coordinated:
            run = known_run(run_id, rank, world_size, self.config.ranks_seconds, together=is_given)
        self._seat = self._taken_seat(session or settings, (rank, world_size, run)) if is_coordinated else None
        self._saver = self._made_saver(arena, rank, world_size, run_id)
        # A save that is under way keeps the saver: the process stays in its job until that is over.
        self._dropping = None if self._seat is None else background.when_dropped(self._saver, self._seat.give_up)

    def _with_copies(self, local: Where) -> CopiedCheckpoints:
        """Several ranks commit behind; what lies on this machine's disk is for loading."""
        store = self._checkpoints.store
        far = store.storage.inner
        copies = LocalCopies(far, checked_local(self._opened(local, "local"), far))
        return CopiedCheckpoints(Store(copies, store.job), copies)

    def _taken_seat(self, where: "Session | Config", world: tuple[int, int, str | None]) -> "Seat":
        from strata.checkpoint.joining import take_seat

        return take_seat(self._checkpoints, where, world, self.config)

    @property
    def world_size(self) -> int:
        """How many ranks save together."""
        return self._checkpoints.size or 1

    @property
    def session(self) -> "Session | None":
        """This process in the job of a coordinator, for as long as it takes part there: one that is alone does so from
        when it first loads or saves."""
        return None if self._seat is None else self._seat.joined.session

    def give_up(self) -> None:
        """A save that is under way, unless it is decided. Before this process is of another world: a save that is begun
        there late would be one of all who are there then."""
        self._saver.abandon("those who save together are others now")

    def reopened(self) -> "CheckpointManager":
        """Another like this one, in the place that this process has in its job since it recovered last. This one is
        closed, and a save that it has under way, with those who were there before, is given up unless it is decided."""
        listeners = self._saver.telling.listeners
        self.give_up()
        with suppress(StrataError):  # it was told, as any failure is
            self.close()
        found = self._like_this()
        for listener in listeners:
            found.listen(listener)
        return found

    def _made_saver(self, arena: Arena, rank: int, world_size: int, run_id: str | None) -> Saver:
        if self._tiers:
            return TieredSaver(self._tiers, self.config, arena)
        if self._seat is not None:
            saver = CrewSaver(self._checkpoints, self.config, arena, self._seat.agreement)
            saver.positions = self._seat.joined.positions
            return saver
        if world_size == 1:
            return Saver(self._checkpoints, self.config, arena)
        run = common_run(run_id, rank, world_size, self.config.ranks_seconds)
        words = Words(self._checkpoints.store, run, rank, world_size, self.config.ranks_seconds)
        return CrewSaver(self._checkpoints, self.config, arena, words)

    async def _going_on_at(self, load: Load, use: Callable[[Folder], Awaitable[T]]) -> T:
        if load.keys is not None:  # a part of it, which nobody goes on from
            return await self._at(load.step, use)
        try:
            point = await self._seat.point(self._look) if self._seat is not None and load.step is None else None
            if point is None:
                return await self._at(load.step, use, self._look)
        except NotFound:
            if load.step is None:  # then the job begins at the start
                self._saver.looked(self._looked)
            raise
        return await self._or_report(point, use(point))

    def _look(self, survey: Survey) -> None:
        self._looked = survey

    async def _read(self, opened: Opened, plan: Plan, load: Load, timeout: float | None) -> Any:
        return await self._or_report(opened.folder, super()._read(opened, plan, load, timeout))

    async def _or_report(self, folder: Folder, work: Awaitable[T]) -> T:
        """That it is damaged, if it is the point which all ranks go on from."""
        try:
            return await work
        except CheckpointDamaged as error:
            if self._seat is not None:
                await self._seat.report_damage(folder, error)
            raise

    def save(self, state: Any, step: int, epoch: int = 0, metrics: dict[str, float] | None = None) -> Report:
        """Returns when the checkpoint is committed."""
        handle = self._saver.begin(state, step, epoch, metrics, hurried=False)
        try:
            return handle.result()
        finally:
            del self, state, handle  # its error refers to this frame

    def save_async(self, state: Any, step: int, epoch: int = 0, metrics: dict[str, float] | None = None) -> SaveHandle:
        """Copies the state and returns; it is written behind. Awaiting the handle means that it is copied."""
        return self._saver.begin(state, step, epoch, metrics, hurried=True)

    def check(self, state: Any) -> None:
        """Raises Unstorable if the state cannot be saved, naming what cannot: better now than at step 1000."""
        self._saver.check(state)

    def prepare(self, state: Any) -> None:
        """Allocate what saving this state takes, so that the first save is as fast as the others."""
        self._saver.prepare(state)

    async def prepare_async(self, state: Any) -> None:
        await asyncio.to_thread(self._saver.prepare, state)

    def wait(self, timeout: float | None = None) -> None:
        """Until nothing is being written, or uploaded. Raises a failure that nobody was told of yet."""
        _check_timeout(timeout)
        self._saver.wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> None:
        await asyncio.to_thread(self.wait, timeout)

    def listen(self, listener: Listener) -> None:
        """Call this with a `SaveEvent` for every save that is over, well or not: on Strata's own thread, so it must
        return at once."""
        check_callable(listener, "listener")
        self._saver.telling.listen(listener)

    @property
    def saves(self) -> list[SaveHandle]:
        """The latest saves of this process, oldest first."""
        return list(self._saver.history)

    def delete(self, step: int) -> None:
        """Remove a checkpoint. Refused if it is pinned."""
        background.run(self._in_time(lambda: self._delete(step), f"deleting step {step}"))

    async def delete_async(self, step: int) -> None:
        await background.awaited(self._in_time(lambda: self._delete(step), f"deleting step {step}"))

    async def _delete(self, step: int) -> None:
        folder = await self._checkpoints.find_to_delete(whole_number(step, "step"))
        if folder.name in await self._checkpoints.pinned():
            raise Refused(f"step {step} in {self.url} is pinned: unpin it first")
        if self._uploader is not None:
            await self._uploader.forget(folder)
        await self._checkpoints.delete([folder])

    def pin(self, step: int) -> None:
        """Keep it, whatever retention says."""
        background.run(self._in_time(lambda: self._pin(step), f"pinning step {step}"))

    async def pin_async(self, step: int) -> None:
        await background.awaited(self._in_time(lambda: self._pin(step), f"pinning step {step}"))

    async def _pin(self, step: int) -> None:
        await self._checkpoints.pin(await self._checkpoints.find(whole_number(step, "step")))

    def unpin(self, step: int) -> None:
        background.run(self._in_time(lambda: self._unpin(step), f"unpinning step {step}"))

    async def unpin_async(self, step: int) -> None:
        await background.awaited(self._in_time(lambda: self._unpin(step), f"unpinning step {step}"))

    async def _unpin(self, step: int) -> None:
        await self._checkpoints.unpin(await self._checkpoints.find_to_delete(whole_number(step, "step")))

    def close(self) -> None:
        """Once what is under way is committed, and uploaded. Raises a failure that nobody was told of yet."""
        try:
            self._saver.close()
        finally:
            if self._seat is not None and self._dropping is not None:
                self._dropping.detach()
                self._seat.give_up()
            super().close()

    def _loaded(self, step: int) -> None:
        super()._loaded(step)
        self._saver.loaded(step, self._looked)

    def reads(self, name: str, where: Callable[[], Position] | None) -> None:
        """From now on each checkpoint says, in the same commit, where this process is in that data: it is in
        `describe(step).data`. All ranks must be at the same place. None: not any more. A loader that is part of a
        job, with a dataset_id, needs none of this."""
        check_name(name, "name")
        if where is not None:
            check_callable(where, "where")
        self._saver.reads(name, where)

    @property
    def _uploader(self) -> Uploader | None:
        return self._saver.uploader if isinstance(self._saver, TieredSaver) else None


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None:
        check_seconds(timeout, "timeout", or_zero=True)


def _orchestrators(job: str | None) -> "Session | None":
    """The session of this process's orchestrator, if it has one in that job; without importing what that needs."""
    shared = sys.modules.get("strata.session.shared")
    session: Session | None = None if shared is None else shared.active()
    return session if session is not None and job in (None, session.who.job) else None


def _place_in(session: "Session", run: str | None) -> tuple[int, int, str | None]:
    place = session.place
    if place is None:
        raise InvalidInput(
            f"worker {session.who.worker!r} is in a world that whoever joins is of, so who saves together is known "
            "once it has recovered: call its orchestrator's recover() before a CheckpointManager is made"
        )
    return place.rank, place.size, run or place.run


def _with(config: CheckpointManagerConfig, keep_count: int | None, incremental: bool | None) -> CheckpointManagerConfig:
    """What was said beside the configuration goes before it."""
    if not isinstance(config, CheckpointManagerConfig):
        raise InvalidInput(f"config must be CheckpointManagerConfig(...), not {type(config).__name__}")
    if keep_count is not None:
        config = replace(config, retention=msgspec.structs.replace(config.retention, keep_count=keep_count))
    return config if incremental is None else replace(config, incremental=incremental)
