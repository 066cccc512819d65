"""Where all ranks of a job go on from, as the coordinator says it; and the manifest of what is decided, for whoever
did not come to put it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from strata.checkpoint.asking import CALL_SECONDS, PAUSE_SECONDS, Asking, Caller, now
from strata.checkpoint.datapositions import messages
from strata.checkpoint.finishing import finish, place_of, placed
from strata.checkpoint.lineage import is_of, read_lineage
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.waiting import Wait
from strata.core.recovery import MAX_EARLIER
from strata.errors import CheckpointDamaged, Conflict, RankFailed, Refused, StrataError, Superseded
from strata.logs import get_logger
from strata.storage import open_storage
from strata.v1 import coordinator_pb2 as pb

logger = get_logger("strata.checkpoint")

Look: TypeAlias = Callable[[], Awaitable[tuple[Folder, Metadata] | None]]


class Point(NamedTuple):
    """Where everybody goes on from in this generation; no folder: from the start."""

    generation: int
    number: int
    """Counts how often the job was taken back."""
    attempt: int
    step: int
    folder: Folder | None
    reason: str


class Recovery:
    """As one rank has it."""

    def __init__(self, asking: Asking, store: Store, size: int) -> None:
        self._asking, self._store, self._size = asking, store, size
        self._where = f"{store.storage.url}/{store.root}"

    async def recover(self, look: Look | None, *, insist: bool = False, silence: float | None = None) -> Point:
        """Where all ranks go on from. `look` gives the latest that is in the storage, where that is to be said; to
        `insist` is to say that it is there. `silence`: how many seconds the coordinator may take to answer, if it is
        not waited for as for others."""
        ends, less, wait = now() + self._asking.patience, None, Wait()
        while True:
            # Before the look: what is committed during it is then newer than what is known.
            known = await self._newest_attempt(silence) if insist or less is not None else None
            found = None if look is None else _found(await look())
            try:
                insists = insist or (found is not None and found == less)
                answer = await self._asking.patiently(
                    "Recover", silence=silence, found=found, insist=insists, known_attempt=known if insists else None
                )
            except Conflict:
                less = found  # than was committed, perhaps since that was looked at
                continue
            except Refused as error:
                if not error.retry or now() > ends:
                    raise
                await _pause(wait, error)
                continue
            if answer.HasField("finish_first"):
                if not await self.put_manifest(answer.finish_first.attempt):
                    await self._wait_for_another(answer.finish_first, ends)
                continue
            point = answer.point
            if len(point.ranks) < self._size and now() < ends:  # one was lost, and is started again later than others
                await _pause(wait, f"{len(point.ranks)} of {self._size} ranks are there")
                continue
            folder = placed(point.place)[0] if point.place else None
            return Point(point.generation, point.point, point.attempt, point.step, folder, point.reason)

    async def _newest_attempt(self, silence: float | None) -> int:
        """Return the coordinator's number of its newest checkpoint; 0 if it has none."""
        answer = await self._asking.patiently("ListCheckpoints", silence=silence, page_size=1)
        return answer.checkpoints[0].attempt if answer.checkpoints else 0

    async def tell_saved(self, saved: Sequence[tuple[Folder, Metadata]], since: int) -> None:
        """Tell the coordinator what was saved without it, oldest first, since the recovery point of that number.
        StaleGeneration if the job was taken back meanwhile."""
        ends = now() + self._asking.patience
        for first in range(0, len(saved), MAX_EARLIER + 1):
            *earlier, latest = map(_found, saved[first : first + MAX_EARLIER + 1])
            while True:
                answer = await self._asking.patiently("Recover", found=latest, earlier=earlier, since=since)
                if not answer.HasField("finish_first"):
                    break
                if not await self.put_manifest(answer.finish_first.attempt):
                    await self._wait_for_another(answer.finish_first, ends)

    async def is_known(self, folder: Folder, metadata: Metadata) -> bool:
        """Whether the coordinator knows this checkpoint, even if as one of no use."""
        place, token = place_of(folder, metadata), ""
        while True:
            page = await self._asking.patiently("ListCheckpoints", page_size=1000, page_token=token)
            if any(each.place == place for each in page.checkpoints):
                return True
            token = page.next_page_token
            if not token:
                return False

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


async def finish_for_others(caller: Caller, job: str, attempt: int) -> None:
    """Put the manifest of what is decided, for a process that has no manager yet: where those who saved it said, if
    that can be opened here. Nobody of them may be left."""
    asking = Asking(caller, CALL_SECONDS)
    try:
        url = (await asking.decision(attempt)).url
        if not url:
            return
        storage = open_storage(url)
        try:
            await Recovery(asking, Store(storage, job), 1).put_manifest(attempt)
        finally:
            await storage.close()
    except (StrataError, ImportError) as error:
        # Whoever asks is told now and then what is waited for.
        logger.info("attempt %d is decided, and could not be committed before a manager is made: %s", attempt, error)


async def _pause(wait: Wait, why: object) -> None:
    if wait.is_due():
        logger.warning("waiting for all ranks to be there for %.0f s: %s", wait.seconds, why)
    await asyncio.sleep(PAUSE_SECONDS)


def _found(latest: tuple[Folder, Metadata] | None) -> pb.Found:
    if latest is None:
        return pb.Found(step=-1)
    folder, metadata = latest
    place, positions = place_of(folder, metadata), messages(metadata.data)
    return pb.Found(step=metadata.step, epoch=metadata.epoch, place=place, positions=positions)
