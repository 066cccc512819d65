"""A training process in its job: registered, heard of, and told what all ranks agree on.

    register_worker ──▶ recover ──▶ steps: should_save, wait_barrier ──▶ deregister
                          ▲            │
                          └────────────┘  the world changed: `is_stale` says so

While one is registered, whatever else of this process takes part in a job (`CheckpointManager`, `strata.data.Loader`)
takes part in this one, unless told otherwise. Calls are async, and run on Strata's own loop; `blocking` has the same
ones for code that is not.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from strata import background
from strata.checkpoint.recovering import finish_for_others
from strata.config import Config
from strata.core.appointments import STOPS
from strata.core.events import MAX_RESOURCES
from strata.core.ids import (
    check_bool,
    check_choice,
    check_id,
    check_instance,
    check_int,
    check_mapping,
    check_seconds,
    check_text,
    check_texts,
)
from strata.core.orders import ShardLayout
from strata.core.settings import LONGEST_SECONDS
from strata.errors import InvalidInput, RankFailed, StaleGeneration, StrataError
from strata.logs import get_logger
from strata.session import (
    CALL_SECONDS,
    Place,
    Session,
    Who,
    activate,
    deactivate,
    ends,
    join,
    join_again,
    leave,
    who_joins,
    will_pass,
)
from strata.session.waiting import recovery_point
from strata.sharding import ShardAssignment, assignments
from strata.v1 import coordinator_pb2 as pb
from strata.wire.addresses import HERE, parse_url
from strata.worker import machine
from strata.worker.barriers import Barriers, Released, barriers_of
from strata.worker.settings import OrchestratorConfig

logger = get_logger("strata.worker")

PAUSE_SECONDS = 0.2
STATES = ("initializing", "idle", "loading", "training", "checkpointing", "recovering")


class Registration(NamedTuple):
    """The place that this process has in its job, and how it came by it."""

    worker_id: str
    rank: int
    world_size: int
    incarnation: int
    generation: int
    heartbeat_seconds: float
    lease_seconds: float
    reason: str


class Recovery(NamedTuple):
    """Where all ranks go on from. A step of -1 is the beginning; `attempt` is the checkpoint's number in the job.
    `rank` is this process's place among the `ranks` that are there. `shards` are this worker's, by dataset."""

    generation: int
    attempt: int
    step: int
    epoch: int
    reason: str
    rank: int
    ranks: tuple[int, ...]
    shards: dict[str, list[ShardAssignment]]

    @property
    def world_size(self) -> int:
        return len(self.ranks)


class Peer(NamedTuple):
    """A worker of the same job, and where it said that it can be reached."""

    worker_id: str
    rank: int
    ip: str
    port: int
    metadata: dict[str, str]


class Stop(NamedTuple):
    """This process is to leave when the step at hand is done. `is_saved`: all ranks save it, and then stop."""

    reason: str
    is_saved: bool = False


class TrainingOrchestrator:
    """This process as worker `worker_id` of a job.

    A rank that is given, here or by the launcher, is taken or refused with the reason; without one the coordinator
    gives one. Likewise world_size; without one the world is open: whoever joins is of it.
    """

    def __init__(
        self,
        worker_id: str | None = None,
        coordinator_url: str | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        *,
        job_id: str | None = None,
        config: OrchestratorConfig | None = None,
    ) -> None:
        check_texts(coordinator_url=coordinator_url)
        check_instance(config, OrchestratorConfig, "config")
        said = {"coordinator_url": coordinator_url or None, "world_size": world_size, "rank": rank, "job_id": job_id}
        self._settings = Config(said, os.environ)
        self.config = OrchestratorConfig() if config is None else config
        job = check_id(self._settings["job_id"], "job_id")
        self.who: Who = who_joins(self._settings, job)
        """As whom this process asks for a place."""
        if worker_id is not None:
            self.who = self.who._replace(worker=check_id(worker_id, "worker_id"))
        self._loop = background.loop()
        self._session: Session | None = None
        self._is_active = False
        """Whether what else of this process takes part in a job does so in this one's."""
        self._barriers: Barriers | None = None
        self._stop: Stop | None = None
        self._generation = 0
        self._world_id = ""

    @property
    def blocking(self) -> "BlockingOrchestrator":
        """The same calls for code that is not async."""
        return BlockingOrchestrator(self)

    @classmethod
    def from_env(cls, **said: Any) -> Self:
        """As torchrun, Slurm, Kubernetes, MPI or Ray say who this is, and of how many. What is said here goes first."""
        return cls(**{**_ray(os.environ), **said})

    def __repr__(self) -> str:
        place = f", rank {self.rank}" if self.is_registered else ", not registered"
        return f"TrainingOrchestrator(worker {self.who.worker!r} of job {self.who.job!r}{place})"

    # -- its place ---------------------------------------------------------------------------------------------------

    async def register_worker(
        self,
        ip: str | None = None,
        port: int = 0,
        gpu_count: int | None = None,
        memory_bytes: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Registration:
        """Ask for a place. From now on this process is heard of, for as long as it lives. What is not said of it is
        looked up. To register again gives the place that it has, and what is said then is told, too."""
        return await background.awaited(self._register(ip, port, gpu_count, memory_bytes, metadata))

    async def _register(
        self, ip: str | None, port: int, gpus: int | None, memory: int | None, metadata: Mapping[str, str] | None
    ) -> Registration:
        about = _said(ip, port, gpus, memory, metadata)
        session, is_new = self._session, self._session is None
        if session is None:
            about = self._found() | about
            session = self._joined(about)
        try:
            found = await session.present(self.config.register_seconds)
            await session.describe(**about)
        except BaseException as error:
            if is_new or session.is_over:  # one that was in its job before stays in it
                await asyncio.to_thread(self._forget, f"it could not register: {error}")
            raise
        self._generation = found.generation
        if self.who.world_size is not None:
            session.place = Place(found.rank, found.world_size)
        return self._registration(found)

    @classmethod
    def following(cls, session: Session) -> Self:
        """In a job that something else of this process takes part in, until `deregister`: what is said of training is
        told there, and what all ranks agree on is heard."""
        who = session.who
        found = cls(who.worker, job_id=who.job)
        found.who = who
        found._take(join_again(session, stall_seconds=found._stall_seconds))
        return found

    @property
    def _stall_seconds(self) -> float | None:
        return self.config.stall_seconds if self.config.helper else None

    def _joined(self, about: dict[str, Any]) -> Session:
        session = join(self._settings, self.who, stall_seconds=self._stall_seconds, **about)
        self._take(session)
        activate(session)
        self._is_active = True
        return session

    def _take(self, session: Session) -> None:
        session.on(pb.Command.KIND_STOP, self._told_to_stop)
        session.on(pb.Command.KIND_DRAIN, self._told_to_stop)
        session.measures = machine.taken
        self._session, self._barriers = session, barriers_of(session)
        self._stop, self._world_id = None, ""  # of the job as it was when this process was last in it

    def _found(self) -> dict[str, Any]:
        """Of this process, where nobody says it."""
        host = parse_url(self._settings["coordinator_url"] or HERE).hosts[0]
        memory, gpus = machine.memory_bytes(), machine.gpu_count()
        return {"ip": machine.address_towards(host), "gpu_count": gpus, "memory_bytes": memory}

    def _registration(self, found: pb.RegisterResponse) -> Registration:
        about = (found.generation, found.heartbeat_seconds, found.lease_seconds, found.reason)
        return Registration(found.worker_id, found.rank, found.world_size, found.incarnation, *about)

    @property
    def is_registered(self) -> bool:
        return self._session is not None and self._session.registered is not None

    @property
    def session(self) -> Session:
        if self._session is None:
            raise InvalidInput(f"worker {self.who.worker!r} is not registered: call register_worker first")
        return self._session

    @property
    def rank(self) -> int:
        """As the coordinator knows this process."""
        return self._registered.rank

    @property
    def world_size(self) -> int:
        """As it was declared; in an open world, as many as were there when this process registered."""
        return self._registered.world_size

    @property
    def world_id(self) -> str:
        """A name for what this process recovered to, the same on all ranks and no other time: for those who connect to
        each other, and must not meet anybody of the world before."""
        if not self._world_id:
            raise InvalidInput(f"worker {self.who.worker!r} has not recovered: call recover first")
        return self._world_id

    @property
    def _registered(self) -> pb.RegisterResponse:
        registered = self.session.registered
        if registered is None:
            raise InvalidInput(f"worker {self.who.worker!r} has no place in the job at the moment")
        return registered

    async def deregister(self, reason: str = "") -> None:
        """Leave, so that nobody waits for this process. What else of it takes part stays until it is closed. Without a
        reason it is how its `Training` ended. A process that ends leaves by itself."""
        await asyncio.to_thread(self._forget, reason)

    def _forget(self, reason: str) -> None:
        session, self._session, self._barriers = self._session, None, None
        if session is not None:
            session.off(pb.Command.KIND_STOP, self._told_to_stop)
            session.off(pb.Command.KIND_DRAIN, self._told_to_stop)
            if self._is_active:
                deactivate(session)
                self._is_active = False
            leave(session, reason)

    async def __aenter__(self) -> Self:
        await self.register_worker()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """One that ends in an error is told of as one that failed; one that is interrupted is not done either."""
        if isinstance(error, Exception):
            ends(f"{type(error).__name__}: {error}", died=True)
        elif error is not None and not isinstance(error, SystemExit | GeneratorExit):
            ends(f"it was interrupted: {type(error).__name__}")
        await self.deregister()

    # -- what it says ------------------------------------------------------------------------------------------------

    def report(
        self,
        state: str | None = None,
        step: int | None = None,
        epoch: int | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        """What the next heartbeats say; what is not said here stays as it was. Takes no time. What this process takes
        of memory and processors is told beside the resources that are said."""
        told: dict[str, Any] = {
            "state": None if state is None else _state(state),
            "step": None if step is None else check_int(step, "step"),
            "epoch": None if epoch is None else check_int(epoch, "epoch"),
            "resources": None if resources is None else _resources(resources),
        }
        said = self.session.says
        self.session.says = said._replace(**{name: value for name, value in told.items() if value is not None})

    async def heartbeat(self, state: str | None = None, step: int | None = None, epoch: int | None = None) -> None:
        """Be heard of now; by itself that happens every few seconds. Raises what the coordinator says against it."""
        self.report(state, step, epoch)
        await background.awaited(self.session.be_heard())

    # -- together ----------------------------------------------------------------------------------------------------

    async def wait_barrier(
        self, barrier_id: str, timeout: float | None = None, expected_participants: int | None = None
    ) -> Released:
        """Until so many have come, by default all of the world. BarrierFailed if one of them is lost, or not all come
        within so many seconds; it names who is missing."""
        check_id(barrier_id, "barrier_id")
        if timeout is not None:
            check_seconds(timeout, "timeout", most=LONGEST_SECONDS, or_zero=True)
        if expected_participants is not None:
            check_int(expected_participants, "expected_participants", least=1)
        if self._barriers is None:
            raise InvalidInput(f"worker {self.who.worker!r} is not registered: call register_worker first")
        count = self.world_size if expected_participants is None else expected_participants
        return await background.awaited(self._barriers.wait(barrier_id, timeout, count))

    def waited_seconds(self) -> float:
        """At barriers, whoever of this process did, since this was asked last."""
        waited = 0.0
        while self._barriers is not None and self._barriers.waited:
            waited += self._barriers.waited.popleft()
        return waited

    def should_save(self, step: int) -> bool:
        """Whether all ranks save at this step, which this one has completed: by schedule, or since somebody asked. Ask
        at each step. It may wait, where others have yet to say whether they can."""
        self.report(step=step)
        agreed = self.session.appointments.reached(step)
        if agreed is not None:
            logger.info("all ranks save at step %d: %s", step, agreed.reason)
            if agreed.last:
                self._stop = Stop(agreed.reason.rpartition(STOPS)[2], is_saved=True)
        every = self.config.save_every
        return agreed is not None or (every is not None and step > 0 and step % every == 0)

    async def request_checkpoint(self, reason: str, within_seconds: float = 0.0) -> int:
        """Ask for one at a step that all ranks agree to; `should_save` then says so. Gives the step, or -1 while
        that is being agreed."""
        _check_request(reason, within_seconds)
        asked = self.session.call("RequestCheckpoint", reason=reason, within_seconds=within_seconds)
        answer = await background.awaited(asked)
        step: int = answer.step
        return step

    def ask_to_stop(self, reason: str, within_seconds: float, *, save: bool = True) -> None:
        """The whole job, at a step that all ranks agree to and save at, or at once; `stopping` then says so. Does not
        wait, so a signal handler may call it."""
        _check_request(reason, within_seconds)
        check_bool(save, "save")
        asyncio.run_coroutine_threadsafe(self._ask_to_stop(reason, within_seconds, save), self._loop)

    async def _ask_to_stop(self, reason: str, within: float, save: bool) -> None:
        until = time.monotonic() + within
        asked: dict[str, Any] = {"reason": reason, "within_seconds": within, "without_checkpoint": not save}
        while True:
            try:
                await self.session.call(
                    "StopJob", within=max(1.0, min(CALL_SECONDS, until - time.monotonic())), **asked
                )
                return
            except StrataError as error:
                if not will_pass(error) or time.monotonic() > until:
                    logger.error("the job could not be asked to stop (%s): %s", reason, error)
                    return
            await asyncio.sleep(PAUSE_SECONDS)

    @property
    def patience_seconds(self) -> float:
        """After so long it is known of every process whether it is lost."""
        registered = self._registered
        return registered.lease_seconds + 2 * registered.heartbeat_seconds + 1.0

    @property
    def stopping(self) -> Stop | None:
        """Whether this process is to leave, and why. Where all stop, it is at the same step."""
        return self._stop

    async def _told_to_stop(self, command: pb.Command) -> None:
        if self._stop is None:
            self._stop = Stop(command.reason)
            logger.warning("worker %s is told to stop: %s", self.who.worker, command.reason)

    # -- recovery ----------------------------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Whether the world has changed since this process recovered, or came: what it does may not fit any more."""
        return self.session.generation > self._generation or self.session.registered is None

    @property
    def is_under_way(self) -> bool:
        """Whether steps were made since it recovered: the recovery point lies behind."""
        return self.session.appointments.has_begun

    async def recover(self, least: int = 1, *, again: bool = False) -> Recovery:
        """Where all ranks go on from. Waits until all of them are there, and in an open world at least so many; what is
        decided is committed first, by a checkpoint manager of any of them. `again`: everybody goes back, though nobody
        is lost."""
        check_int(least, "least", least=1)
        check_bool(again, "again")
        return await background.awaited(self._recover(least, again))

    async def _recover(self, least: int, again: bool) -> Recovery:
        session = self.session
        session.appointments.begin_again()
        self.report("recovering")
        ends = time.monotonic() + self.config.recover_seconds
        least, former = max(self.who.world_size or 0, least), self._generation if again else None
        finish = partial(finish_for_others, session, self.who.job)
        who = f"worker {self.who.worker!r}"
        point = await recovery_point(session, least, who, ends, generation=former, finish=finish)
        own = self._registered
        ranks = tuple(point.ranks)
        if own.rank not in ranks:
            raise RankFailed(f"worker {own.worker_id!r} (rank {own.rank}) is not of the world that goes on: {ranks}")
        self._generation, place = point.generation, ranks.index(own.rank)
        self._world_id = f"generation{point.generation}.{point.point}"
        if self.who.world_size is None:
            session.place = Place(place, len(ranks), self._world_id)
        shards = await self._shards(own.rank)
        about = (point.attempt, point.step, point.epoch, point.reason)
        return Recovery(point.generation, *about, place, ranks, shards)

    async def gather(self) -> None:
        """Until all who recovered to the same point have come here, so that whoever connects to them meets nobody of
        the world before. StaleGeneration if the world changes meanwhile."""
        await background.awaited(self._gather())

    async def _gather(self) -> None:
        place = self.session.place
        if not self._world_id or place is None or place.size < 2 or self._barriers is None:
            return
        waiting = self._barriers.wait(f"recovered-{self._world_id}", self.config.recover_seconds, place.size)
        task = asyncio.ensure_future(waiting)
        try:
            while not (await asyncio.wait({task}, timeout=PAUSE_SECONDS))[0]:
                if self.is_stale:
                    raise StaleGeneration(f"the world has changed since {self._world_id}", generation=self._generation)
            task.result()
        finally:
            task.cancel()

    async def peers(self) -> list[Peer]:
        """Who is there since this process recovered, by place. StaleGeneration if that has changed."""
        return await background.awaited(self._peers())

    async def _peers(self) -> list[Peer]:
        found: list[Peer] = []
        page: Any = None
        while page is None or page.HasField("next_rank"):
            start = 0 if page is None else page.next_rank
            page = await self.session.call("GetWorld", from_rank=start, generation=self._generation)
            found += [Peer(each.worker_id, each.rank, each.ip, each.port, dict(each.metadata)) for each in page.peers]
        return found

    async def _shards(self, rank: int) -> dict[str, list[ShardAssignment]]:
        known = (await self.session.call("ListDatasets")).datasets
        return {each.dataset_id: await self._shards_of(each.dataset_id, rank) for each in known}

    async def _shards_of(self, dataset: str, rank: int) -> list[ShardAssignment]:
        share = await self.session.call("GetShards", dataset_id=dataset, rank=rank)
        layout = ShardLayout(share.total_samples, share.shard_size)
        return assignments(dataset, layout, share.epoch, np.array(share.shard_ids, np.int64))


class BlockingOrchestrator:
    """The same calls for code that is not async."""

    def __init__(self, orchestrator: TrainingOrchestrator) -> None:
        self._orchestrator = orchestrator

    def register_worker(
        self,
        ip: str | None = None,
        port: int = 0,
        gpu_count: int | None = None,
        memory_bytes: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Registration:
        return background.run(self._orchestrator.register_worker(ip, port, gpu_count, memory_bytes, metadata))

    def wait_barrier(
        self, barrier_id: str, timeout: float | None = None, expected_participants: int | None = None
    ) -> Released:
        return background.run(self._orchestrator.wait_barrier(barrier_id, timeout, expected_participants))

    def heartbeat(self, state: str | None = None, step: int | None = None, epoch: int | None = None) -> None:
        background.run(self._orchestrator.heartbeat(state, step, epoch))

    def request_checkpoint(self, reason: str, within_seconds: float = 0.0) -> int:
        return background.run(self._orchestrator.request_checkpoint(reason, within_seconds))

    def recover(self, least: int = 1, *, again: bool = False) -> Recovery:
        return background.run(self._orchestrator.recover(least, again=again))

    def gather(self) -> None:
        background.run(self._orchestrator.gather())

    def peers(self) -> list[Peer]:
        return background.run(self._orchestrator.peers())

    def deregister(self, reason: str = "") -> None:
        self._orchestrator._forget(reason)


def _state(name: str) -> int:
    check_choice(name, "state", STATES)
    return pb.WorkerState.Value(f"WORKER_STATE_{name.upper()}")


def _said(
    ip: str | None, port: int, gpus: int | None, memory: int | None, metadata: Mapping[str, str] | None
) -> dict[str, Any]:
    """What was said of a process, checked."""
    said: dict[str, Any] = {}
    if ip is not None:
        said["ip"] = check_text(ip, "ip")
    if check_int(port, "port", most=65535):
        said["port"] = port
    if gpus is not None:
        said["gpu_count"] = check_int(gpus, "gpu_count")
    if memory is not None:
        said["memory_bytes"] = check_int(memory, "memory_bytes")
    if metadata is not None:
        said["metadata"] = _metadata(metadata)
    return said


def _check_request(reason: str, within_seconds: float) -> None:
    check_text(reason, "reason")
    check_seconds(within_seconds, "within_seconds", most=LONGEST_SECONDS, or_zero=True)


def _metadata(said: Mapping[str, str]) -> dict[str, str]:
    check_mapping(said, "metadata")
    return {
        check_text(name, "a name in metadata"): check_text(value, f"metadata[{name!r}]") for name, value in said.items()
    }


def _resources(said: Mapping[str, float]) -> dict[str, float]:
    """A heartbeat with others is refused, and the worker is lost."""
    check_mapping(said, "resources")
    if len(said) > MAX_RESOURCES:
        raise InvalidInput(f"{len(said)} resources are more than the {MAX_RESOURCES} that the coordinator keeps")
    for name in said:
        check_text(name, "the name of one of the resources")
    try:
        return {name: float(value) for name, value in said.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"resources are numbers by name, which {dict(said)!r} is not: {error}") from error


def _ray(environment: Mapping[str, str]) -> dict[str, Any]:
    """Ray Train tells a worker its place in the process that it runs in, where the environment does not. What else is
    said there may be of the process that started Ray, as Slurm's names are; `STRATA_*` is meant for this one."""
    train = sys.modules.get("ray.train")
    unsaid = [name for name in ("rank", "world_size") if f"STRATA_{name.upper()}" not in environment]
    if train is None or "RANK" in environment or not unsaid:
        return {}
    try:
        context = train.get_context()
    except (RuntimeError, DeprecationWarning):  # no worker of Ray Train, though it is imported; or one of Ray Tune
        return {}
    place = {"rank": context.get_world_rank(), "world_size": context.get_world_size()}
    return {name: place[name] for name in unsaid}
