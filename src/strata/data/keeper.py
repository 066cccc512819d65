"""Keeps a worker's grants in step with the coordinator, behind the training loop's back.

    recovers    when it begins to read, or has come back: before that nothing is read
    asks        when the world, the epoch or the recovery point is another, or a shard is awaited
    gives up    what was revoked, as soon as nothing of it is in hand
    reports     what was consumed, at most so often, and at once when the worker has nothing left

Everything is done by one task, one call after the other, so that answers come in the order of the questions. While the
coordinator does not answer, what is granted is read on, and what is to be told is told later. An error that time does
not mend is kept for the training loop, which raises it.
"""

import asyncio
import math
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from strata import background
from strata.data.grants import Grants, Share, Standing, Told
from strata.data.joining import BEHIND_ALL
from strata.data.levelled import Levelled
from strata.errors import Expired, Refused, StaleGeneration, StrataError
from strata.logs import get_logger
from strata.rpc import RpcError
from strata.session import is_silence, will_pass

logger = get_logger("strata.data")

WAIT_SECONDS = 0.5
"""Between looks at how far the others are while the worker has nothing to read, and questions while it awaits a
shard."""
ASK_SECONDS = 30.0
"""Between questions while nothing is known to have changed."""
REFUSALS = 3
"""What is refused so often is for the training loop to hear of."""
CALL_SECONDS = 10.0
CLOSE_SECONDS = 5.0


class Caller(Protocol):
    """Calls the coordinator as this worker; see `strata.session`."""

    @property
    def is_silent(self) -> bool: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def generation(self) -> int: ...

    async def call(self, method: str, *, within: float = ..., **fields: Any) -> Any: ...


class Keeper:
    """`changed` guards `grants` and everything else here; whoever waits for news waits on it."""

    def __init__(self, caller: Caller, dataset_id: str, grants: Grants | Levelled, report_seconds: float) -> None:
        self._caller, self._dataset, self._report_seconds = caller, dataset_id, report_seconds
        self.grants = grants
        self.changed = threading.Condition()
        self.trouble: StrataError | None = None
        """What the training loop has to know."""
        self.last_error: StrataError | None = None
        """Why the last call did not succeed, if it did not."""
        self.is_reading = False
        """Whether the worker has begun. Before that it only gives up what others wait for, if they may."""
        self.is_idle = False
        """Whether the worker has nothing to read."""
        self.moved = time.monotonic()
        """When anybody in the job was last seen to get on."""
        self._wanted, self._answered = 1, 0
        self._recovered = 0
        """As which incarnation."""
        self._asked_at = self._reported_at = -math.inf
        self._consumed = -1
        self._refusals = 0
        """One after the other, with the shards asked for in between."""
        self._wake = asyncio.Event()
        self._task: Future[None] | None = None

    # -- for the training loop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.run_coroutine_threadsafe(self._live(), background.loop())

    def ask(self) -> int:
        """What the shards are is asked anew; `has_answered` tells when that is known. Call it with `changed` held."""
        self.is_reading = True
        self._wanted += 1
        self.wake()
        return self._wanted

    def has_answered(self, question: int) -> bool:
        return self._answered >= question

    @property
    def is_silent(self) -> bool:
        """Whether the coordinator did not answer when it was last asked."""
        return self._caller.is_silent or (self.last_error is not None and is_silence(self.last_error))

    def wake(self) -> None:
        """There is something to tell, or to ask, that should not wait."""
        background.loop().call_soon_threadsafe(self._wake.set)

    async def close(self) -> None:
        """What was consumed is told once more, if anybody answers."""
        if self._task is not None:
            self._task.cancel()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._release()
                await self._report()
        except (StrataError, TimeoutError) as error:
            logger.warning("what was consumed last of dataset %s could not be reported: %s", self._dataset, error)

    # -- its life ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:  # a defect: the training loop must not wait for ever
                logger.exception("dataset %s is not kept in step with the coordinator any more", self._dataset)
                self._give_to_the_loop(StrataError(f"a defect in Strata: {error!r}"))
                raise
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS if self.is_idle else min(WAIT_SECONDS, self._report_seconds)):
                    await self._wake.wait()
            self._wake.clear()

    async def round(self) -> None:
        """All that is to be asked and told now."""
        try:
            await self._tend()
        except StrataError as error:
            self._heed(error)

    async def _tend(self) -> None:
        if self.is_idle and self.grants.standing is not None:
            await self._look(self.grants.standing)
        if self._is_due():
            await self._ask()
        await self._release()
        if self.is_idle or time.monotonic() - self._reported_at >= self._report_seconds:
            await self._report()
        self.last_error, self._refusals = None, 0

    def _is_due(self) -> bool:
        standing, caller = self.grants.standing, self._caller
        if self.grants.level and not self.is_reading:
            return False
        return (
            standing is None
            or self._answered < self._wanted
            or bool(self.grants.awaited)
            or (caller.incarnation, caller.generation) != (standing.incarnation, self.grants.generation)
            or time.monotonic() - self._asked_at > ASK_SECONDS
        )

    async def _recover(self) -> None:
        """Whoever comes goes on from where all do. If nobody was left, that is the latest checkpoint."""
        answer = await self._caller.call("Recover", within=CALL_SECONDS)
        if answer.HasField("finish_first"):
            step = answer.finish_first.step
            raise Refused(f"step {step} is decided, and a checkpoint manager has to commit it", retry=True)

    async def _ask(self) -> None:
        question, asker = self._wanted, self._caller.incarnation
        if self.is_reading and (asker != self._recovered or not asker):
            await self._recover()
            self._recovered = asker
        asked = {"dataset_id": self._dataset, "level": self.grants.level}
        answer = await self._caller.call("GetAssignments", within=CALL_SECONDS, **asked)
        if asker != self._caller.incarnation:
            self._wake.set()  # the answer was for whom this worker was before
            return
        if self.grants.level and not answer.HasField("levelled"):
            raise Refused("the coordinator is of a version that does not even out ends yet: leave the tail out")
        self._asked_at = time.monotonic()
        told = _told(answer, asker)
        with self.changed:
            before = self.grants.standing
            if before is not None and before.incarnation != asker:
                logger.warning(
                    "this worker was given up, and reads dataset %s on as incarnation %d: what it had consumed and not "
                    "reported is given out again",
                    self._dataset,
                    asker,
                )
            self.grants.told(told)
            self._answered = question
            self.changed.notify_all()

    async def _release(self) -> None:
        with self.changed:
            release, standing = self.grants.release(), self.grants.standing
        if release is None or standing is None:
            return
        await self._say(
            "AcknowledgeRevocation",
            standing,
            generation=release.generation,
            shards=release.shards,
            cursors=release.cursors,
        )
        with self.changed:
            self.grants.released(standing, release)

    async def _report(self) -> None:
        with self.changed:
            news, standing = self.grants.news(), self.grants.standing
        if not news or standing is None:
            return
        await self._say("ReportProgress", standing, **news)
        self._reported_at = time.monotonic()
        with self.changed:
            self.grants.reported(standing, news)

    async def _look(self, standing: Standing) -> None:
        """Whether anybody gets on, and whether shards are to be asked for: those are much to tell, and this little."""
        asked = {"dataset_id": self._dataset, "from_place": BEHIND_ALL}
        answer = await self._caller.call("GetLedger", within=CALL_SECONDS, **asked)
        known, now = answer.dataset, time.monotonic()
        if known.consumed_samples != self._consumed:
            self._consumed, self.moved = known.consumed_samples, now
        heard = known.version, answer.point, known.epoch, answer.generation
        if heard != (standing.version, standing.point, standing.epoch, self.grants.generation):
            with self.changed:
                self._wanted += 1

    async def _say(self, method: str, standing: Standing, **fields: Any) -> None:
        """As the incarnation that it is about. As another, it would be told of what that one has not read."""
        if standing.incarnation != self._caller.incarnation:
            raise Expired("this worker was given up, and has come back as another")
        await self._caller.call(
            method,
            within=CALL_SECONDS,
            dataset_id=self._dataset,
            version=standing.version,
            epoch=standing.epoch,
            point=standing.point,
            **fields,
        )

    def _heed(self, error: StrataError) -> None:
        """Ask what is what before anything else. What is refused again and again is not a matter of who heard what
        first."""
        passes = error.retry or will_pass(error) or isinstance(error, RpcError)
        with self.changed:
            self._wanted += 1
            self.last_error = error
        if passes:
            logger.debug("dataset %s: %s", self._dataset, error)
            return
        self._refusals += 1
        if isinstance(error, Refused | StaleGeneration) and self._refusals < REFUSALS:
            self._wake.set()
        else:
            self._give_to_the_loop(error)

    def _give_to_the_loop(self, error: StrataError) -> None:
        with self.changed:
            self.trouble = error
            self.changed.notify_all()


def _told(answer: Any, incarnation: int) -> Told:
    return Told(
        Standing(incarnation, answer.version, answer.point, answer.epoch),
        answer.generation,
        list(answer.granted),
        list(answer.awaited),
        list(answer.revoked),
        dict(answer.cursors),
        {shard: list(ranges.edges) for shard, ranges in answer.beyond.items()},
        _share(answer.levelled) if answer.HasField("levelled") else None,
    )


def _share(levelled: Any) -> Share:
    return Share(levelled.ranks, levelled.left, list(levelled.edges), levelled.read)
