"""Where all ranks of a job go on from, as the coordinator says it; and the manifest of what is decided, for whoever
did not come to put it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from strata.checkpoint.asking import PAUSE_SECONDS, Asking, now
from strata.checkpoint.finishing import finish, place_of, placed
from strata.checkpoint.lineage import is_of, read_lineage
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.waiting import Wait
from strata.errors import CheckpointDamaged, Conflict, RankFailed, Refused, Superseded
from strata.v1 import coordinator_pb2 as pb

logger = logging.getLogger("strata.checkpoint")

Look: TypeAlias = Callable[[], Awaitable[tuple[Folder, Metadata] | None]]


class Point(NamedTuple):
    """Where everybody goes on from in this generation; no folder: from the start."""

    generation: int
    attempt: int
    step: int
    folder: Folder | None
    reason: str


class Recovery:
    """As one rank has it."""

    def __init__(self, asking: Asking, store: Store) -> None:
        self._asking, self._store = asking, store
        self._where = f"{store.storage.url}/{store.root}"

    async def recover(self, look: Look | None, *, insist: bool = False, silence: float | None = None) -> Point:
        """Where all ranks go on from. `look` gives the latest that is in the storage, where that is to be said; to
        `insist` is to say that it is there. `silence`: how many seconds the coordinator may take to answer, if it is
        not waited for as for others."""
        ends, less, wait = now() + self._asking.patience, None, Wait()
        while True:
            found = None if look is None else _found(await look())
            try:
                insists = insist or (found is not None and found == less)
                answer = await self._asking.patiently("Recover", silence=silence, found=found, insist=insists)
            except Conflict:
                less = found  # than was committed, perhaps since that was looked at
                continue
            except Refused as error:
                if not error.retry or now() > ends:
                    raise
                if wait.is_due():
                    logger.warning("waiting for all ranks to be there for %.0f s: %s", wait.seconds, error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.HasField("finish_first"):
                if not await self.put_manifest(answer.finish_first.attempt):
                    await self._wait_for_another(answer.finish_first, ends)
                continue
            point = answer.point
            folder = placed(point.place)[0] if point.place else None
            return Point(point.generation, point.attempt, point.step, folder, point.reason)

    async def _wait_for_another(self, decided: pb.Command, ends: float) -> None:
        """Who saves the same job somewhere else puts its own manifest."""
        if now() > ends:
            raise RankFailed(
                f"step {decided.step} of this job is decided and has no manifest (attempt {decided.attempt}), and "
                f"nothing of it is in {self._where}: bring back the storage that it was saved to, or give this one a "
                "job_id of its own"
            )
        await asyncio.sleep(PAUSE_SECONDS)

    async def put_manifest(self, attempt: int) -> bool:
        """Of what is decided, for whoever did not come to it. One that cannot be put any more is damaged. That this
        rank cannot write says nothing: others are asked, too. What was never begun in this storage is another's, and
        left alone: whether it was not."""
        try:
            decision = await self._asking.decision(attempt)
            name = placed(decision.place)[1]
        except CheckpointDamaged as error:
            logger.info("attempt %d is not of a kind that can be finished here: %s", attempt, error)
            return False
        if not any(is_of(term, name) for term in (await read_lineage(self._store)).terms):
            logger.info("attempt %d is none of %s", attempt, self._where)
            return False
        try:
            await finish(self._store, decision)
        except (Superseded, CheckpointDamaged, Conflict) as error:
            await self._asking.report_damage(attempt, str(error))
            return True
        await self._asking.patiently("CommitCheckpoint", attempt=attempt)
        return True


def _found(latest: tuple[Folder, Metadata] | None) -> pb.Found:
    if latest is None:
        return pb.Found(step=-1)
    folder, metadata = latest
    return pb.Found(step=metadata.step, epoch=metadata.epoch, place=place_of(folder, metadata))
