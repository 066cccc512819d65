"""A place in a job that a coordinator keeps: the session, what ranks agree on through it, and the point that all of
them go on from. Imported only where there is a coordinator: it needs gRPC.
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from strata.checkpoint.asking import PAUSE_SECONDS, Asking, now
from strata.checkpoint.checkpoints import Checkpoints, Looked, unheeded
from strata.checkpoint.council import Council
from strata.checkpoint.datapositions import Positions
from strata.checkpoint.eitherway import EitherWay
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.recovering import Point
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.store import Folder
from strata.checkpoint.words import Words
from strata.config import Config
from strata.errors import InvalidInput, NotFound, StrataError
from strata.logs import get_logger
from strata.session import CALL_SECONDS, CarryOut, Session, is_silence, join, join_again, leave, who_is
from strata.v1 import coordinator_pb2 as pb

logger = get_logger("strata.checkpoint")


class _Joined:
    """The session of this process. One of several ranks is waited for by the others from the moment that its manager is
    made. One that is alone joins when it saves or goes on: who only looks must not take a running job's name."""

    def __init__(self, opens: Callable[[], Session], put_manifest: CarryOut, *, at_once: bool) -> None:
        self._opens, self._put_manifest = opens, put_manifest
        self._session: Session | None = None
        self.is_left = False
        if at_once:
            self.join()

    def join(self) -> Session:
        if self.is_left:
            raise InvalidInput("this manager is closed: make another")
        if self._session is None:
            self._session = self._opens()
            self._session.on(pb.Command.KIND_PUT_MANIFEST, self._put_manifest)
        return self._session

    @property
    def session(self) -> Session | None:
        """If it has joined, and has not left."""
        return self._session

    @property
    def is_silent(self) -> bool:
        return self._session is not None and self._session.is_silent

    @property
    def is_unsteady(self) -> bool:
        return self._session is not None and self._session.is_unsteady

    def learn(self, generation: int) -> None:
        """Of the world, before the next heartbeat tells: whoever of this process went on in another is to see that."""
        session = self.join()
        session.generation = max(session.generation, generation)

    def positions(self) -> Positions:
        """Where this process is in each dataset that it reads as part of the job."""
        return self.join().positions()

    async def call(self, method: str, *, within: float = CALL_SECONDS, **fields: Any) -> Any:
        return await self.join().call(method, within=within, **fields)

    def leave(self) -> None:
        self.is_left = True
        session, self._session = self._session, None
        if session is not None:
            session.off(pb.Command.KIND_PUT_MANIFEST, self._put_manifest)
            leave(session)


class Seat:
    """In the job, for as long as a manager is open."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        opens: Callable[[], Session],
        world: tuple[int, int, str | None],
        how: CheckpointManagerConfig,
        *,
        is_open: bool = False,
    ) -> None:
        """`world`: the rank, the size, and a name for this start of all ranks, if it has one. `is_open`: whoever joins
        the job is of its world."""
        self._checkpoints = checkpoints
        (rank, size, run), store, patience = world, checkpoints.store, how.ranks_seconds
        self.joined = _Joined(opens, _weakly(self.put_manifest), at_once=size > 1)
        self.asking = Asking(self.joined, patience, store.storage.url)
        self.council = Council(self.asking, store, rank, size, run=run or "", is_open=is_open)
        words = None if run is None else Words(store, run, rank, size, patience)
        self._reach = how.coordinator_seconds
        self.agreement = EitherWay(self.council, words, partial(_latest, checkpoints), self._reach)
        self._point: Point | None = None

    async def put_manifest(self, command: pb.Command) -> None:
        """The storage is closed when this seat has been left: that is another's to put then, and no failure."""
        try:
            await self.council.recovery.put_manifest(command.attempt)
        except StrataError as error:
            if not self.joined.is_left:
                raise
            logger.debug("attempt %d is left to others: %s", command.attempt, error)

    async def point(self, looked: Looked) -> Folder | None:
        """The checkpoint that all ranks go on from, the first time it is asked for in a generation. None: whichever is
        the latest, since the point is taken already, or nobody can tell of one. `looked` is told what was there."""
        latest = partial(_latest, self._checkpoints, looked)
        try:
            point = await agreed_point(self.council, latest, self._reach)
        except StrataError as error:
            if not is_silence(error):
                raise
            logger.warning("the latest checkpoint is taken without asking what others take: %s", error)
            return None
        if self.council.generation == point.generation:
            return None
        self.joined.learn(point.generation)
        if point.folder is not None:
            await self._check_shared(point.folder)
        self.council.generation, self.council.point, self._point = point.generation, point, point
        if point.folder is None and point.step >= 0:
            raise NotFound(f"the recovery point, step {point.step}, is not in {self._checkpoints.where}")
        if point.folder is None and await latest() is not None:
            raise NotFound(
                f"all ranks begin at the start, whatever is in {self._checkpoints.where} ({point.reason}): to go on "
                "from a checkpoint, load it by its step on all of them"
            )
        return point.folder

    async def _check_shared(self, folder: Folder) -> None:
        """What all ranks go on from was found in the storage by one of them. Who does not see it must not take another,
        nor begin at the start."""
        if not await self._checkpoints.store.is_committed(folder):
            raise InvalidInput(
                f"all ranks go on from {folder.name}, and rank {self.council.rank} on {self.asking.node} does not see "
                f"it in {self._checkpoints.where}: all ranks must have the same storage there. If it was deleted "
                "since, start all of them again"
            )

    async def report_damage(self, folder: Folder, error: StrataError) -> None:
        """If that is the point: the others must not go on from it either. Who looked at another has found nothing that
        is wrong with it."""
        if self._point is not None and self._point.attempt and self._point.folder == folder:
            try:
                await self.asking.report_damage(self._point.attempt, str(error))
            except StrataError as silence:
                logger.warning("that the checkpoint is damaged could not be told to the coordinator: %s", silence)

    def give_up(self) -> None:
        self.joined.leave()


async def _latest(checkpoints: Checkpoints, looked: Looked = unheeded) -> tuple[Folder, Metadata] | None:
    survey = await checkpoints.survey()
    looked(survey)
    latest = survey.latest()
    return None if latest is None else (latest, await checkpoints.metadata(latest))


def _weakly(carry_out: CarryOut) -> CarryOut:
    """Do what this method does, for as long as its object lives. It refers to what is given this: neither must keep the
    other, or a dropped manager keeps its threads until the garbage collector looks."""
    method = weakref.WeakMethod(carry_out)

    async def carry_out_if_alive(command: pb.Command) -> None:
        alive = method()
        if alive is not None:
            await alive(command)

    return carry_out_if_alive


async def agreed_point(
    council: Council, look: Callable[[], Awaitable[tuple[Folder, Metadata] | None]], reach: float
) -> Point:
    """An orchestrator may have been the first to ask, which does not see the storage: then the point is the latest
    that the coordinator knows. What was saved while that was away, or before it lost its state, is not lost for
    that: the first rank says that it is there, and everybody goes on from it. The others wait for its word."""
    recovery, ends = council.recovery, now() + reach
    while True:
        point = await recovery.recover(look, silence=reach)
        latest = None if point.generation == council.generation else await look()
        if latest is None or latest[0] == point.folder:
            return point
        if await recovery.is_known(*latest):
            # Perhaps since the first rank said so, and then what was answered before is not the point any more.
            if await recovery.recover(look, silence=reach) == point or now() > ends:
                return point
            continue
        if council.rank == 0:
            logger.warning("%s is not known to the coordinator: all ranks go on from there", latest[0].name)
            return await recovery.recover(look, insist=True, silence=reach)
        if now() > ends:
            return point
        await asyncio.sleep(PAUSE_SECONDS)


def take_seat(
    checkpoints: Checkpoints, where: Session | Config, world: tuple[int, int, str | None], how: CheckpointManagerConfig
) -> Seat:
    """In this process's own session: the one that it has, or one by these settings."""
    if isinstance(where, Session):
        return Seat(checkpoints, partial(join_again, where), world, how, is_open=where.who.world_size is None)
    rank, size, _ = world
    who = who_is(where, checkpoints.store.job, rank, size)
    return Seat(checkpoints, partial(join, where, who), world, how)
