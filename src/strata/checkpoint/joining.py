"""A place in a job that a coordinator keeps: the session, what ranks agree on through it, and the point that all of
them go on from. Imported only where there is a coordinator: it needs gRPC.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from strata.checkpoint.asking import Asking
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.council import Council
from strata.checkpoint.eitherway import EitherWay
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.recovering import Point
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.store import Folder
from strata.checkpoint.words import Words
from strata.config import Config
from strata.errors import InvalidInput, NotFound, StrataError
from strata.session import CALL_SECONDS, CarryOut, Session, Who, is_silence, join, leave
from strata.v1 import coordinator_pb2 as pb

logger = logging.getLogger("strata.checkpoint")


class _Joined:
    """The session of this process. One of several ranks is waited for by the others from the moment that its manager is
    made. One that is alone joins when it saves or goes on: who only looks must not take a running job's name."""

    def __init__(self, opens: Callable[[], Session], put_manifest: CarryOut, *, at_once: bool) -> None:
        self._opens, self._put_manifest = opens, put_manifest
        self._session: Session | None = None
        self._is_left = False
        if at_once:
            self._joined()

    def _joined(self) -> Session:
        if self._is_left:
            raise InvalidInput("this manager is closed: make another")
        if self._session is None:
            self._session = self._opens()
            self._session.on(pb.Command.KIND_PUT_MANIFEST, self._put_manifest)
        return self._session

    @property
    def is_silent(self) -> bool:
        return self._session is not None and self._session.is_silent

    async def call(self, method: str, *, within: float = CALL_SECONDS, **fields: Any) -> Any:
        return await self._joined().call(method, within=within, **fields)

    def leave(self) -> None:
        self._is_left = True
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
    ) -> None:
        """`world`: the rank, the size, and a name for this start of all ranks, if it has one."""
        self._checkpoints = checkpoints
        (rank, size, run), store, patience = world, checkpoints.store, how.ranks_seconds
        self.joined = _Joined(opens, self._put_manifest, at_once=size > 1)
        self._asking = Asking(self.joined, patience)
        self.council = Council(self._asking, store, rank, size, run=run or "")
        words = None if run is None else Words(store, run, rank, size, patience)
        self._reach = how.coordinator_seconds
        self.agreement = EitherWay(self.council, words, self._latest, self._reach)
        self._point: Point | None = None

    async def _put_manifest(self, command: pb.Command) -> None:
        await self.council.recovery.put_manifest(command.attempt)

    async def point(self) -> Folder | None:
        """The checkpoint that all ranks go on from, the first time it is asked for in a generation. None: whichever is
        the latest, since the point is taken already, or nobody can tell of one."""
        try:
            point = await self.council.recovery.recover(self._latest, silence=self._reach)
        except StrataError as error:
            if not is_silence(error):
                raise
            logger.warning("the latest checkpoint is taken without asking what others take: %s", error)
            return None
        if self.council.generation == point.generation:
            return None
        if point.folder is not None:
            await self._check_shared(point.folder)
        self.council.generation, self._point = point.generation, point
        if point.folder is None and point.step >= 0:
            raise NotFound(f"the recovery point, step {point.step}, is not in {self._checkpoints.where}")
        if point.folder is None and await self._latest() is not None:
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
                f"all ranks go on from {folder.name}, and rank {self.council.rank} on {self._asking.node} does not see "
                f"it in {self._checkpoints.where}: all ranks must have the same storage there. If it was deleted "
                "since, start all of them again"
            )

    async def _latest(self) -> tuple[Folder, Metadata] | None:
        latest = await self._checkpoints.latest()
        return None if latest is None else (latest, await self._checkpoints.metadata(latest))

    async def report_damage(self, folder: Folder, error: StrataError) -> None:
        """If that is the point: the others must not go on from it either. Who looked at another has found nothing that
        is wrong with it."""
        if self._point is not None and self._point.attempt and self._point.folder == folder:
            try:
                await self._asking.report_damage(self._point.attempt, str(error))
            except StrataError as silence:
                logger.warning("that the checkpoint is damaged could not be told to the coordinator: %s", silence)

    def give_up(self) -> None:
        self.joined.leave()


def take_seat(
    checkpoints: Checkpoints, settings: Config, world: tuple[int, int, str | None], how: CheckpointManagerConfig
) -> Seat:
    """In this process's own session."""
    (rank, size, _), named = world, settings["worker_id"]
    worker = f"rank-{rank}" if not named else named if size == 1 else f"{named}-{rank}"  # one for all of a node
    who = Who(checkpoints.store.job, worker, rank, size)
    return Seat(checkpoints, partial(join, settings, who), world, how)
