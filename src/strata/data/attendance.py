"""A loader's part in its job, in the elastic order: where all ranks go on from, this one's share of each batch, and the
coordinator's ledger of what is consumed.

    begin ──▶ all ranks are there, at one recovery point: the epoch, the place in it, the share
    told  ──▶ so far every batch was worked on: the ledger learns it, behind the training, or before the next batch
    check ──▶ StaleGeneration if the job was taken back, or is shared out differently, since `begin`

The law: what is told was consumed, and is told under the point that it goes on from; what the coordinator does not hear
now it hears later, and nothing waits for it. A coordinator that is away is no reason to stop.
"""

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from strata import background
from strata.core.events import Position
from strata.core.ids import check_id
from strata.core.progress import MAX_LEFT_OUT_BATCHES
from strata.data.index import DatasetIndex
from strata.data.joining import BEHIND_ALL, Source, files_of, joined, registered_in
from strata.data.position import Cut, told_apart
from strata.data.registered import RegisteredDataset, registered
from strata.data.runs import Share
from strata.errors import InvalidInput, StaleGeneration, StrataError
from strata.logs import get_logger
from strata.session import CALL_SECONDS, Session, leave, who_takes_part
from strata.session.waiting import passes, recovery_point, wait_for

logger = get_logger("strata.data")

PAUSE_SECONDS = 0.2
TELL_SECONDS = 1.0
"""The ledger learns of progress about so often."""
WAIT_SECONDS = 900.0
"""For all ranks to be there."""
AGAIN_TICKS = 10
"""A coordinator that was restarted hears again where all are, after so many times that it learns of progress."""
UNTOLD = -1
LOOK_SECONDS = 5.0
CLOSE_SECONDS = 5.0
"""For what is still to be told, when a loader is closed."""


def attend(dataset_id: str, coordinator_url: str | None, **said: Any) -> "Attendance":
    """As the worker that this process is; see `joining`."""
    check_id(dataset_id, "dataset_id")
    return Attendance(joined(coordinator_url, who_takes_part, **said), dataset_id)


class Standing(NamedTuple):
    """Where all ranks go on from. `through`: so many samples of the epoch's order are consumed, read as `reading`; so
    many of those were `left_out`. `carries_on`: nobody goes back when another is lost."""

    point: int
    generation: int
    ranks: tuple[int, ...]
    carries_on: bool
    share: Share
    epoch: int
    through: int
    reading: str
    left_out: int


class Attendance:
    """Of one loader. `reading` says all that its batches depend on beyond the dataset. Used by one thread at a time,
    but for the position, which anybody may ask for."""

    def __init__(self, session: Session, dataset_id: str) -> None:
        self.session = session
        self._where: Position | None = None
        try:
            self.dataset = registered_in(session, dataset_id, "elastic")
            session.reads(dataset_id, self.position)
        except BaseException:
            leave(session)
            raise
        self.reading = ""
        self.skips_damage = False
        """Whether damaged samples are left out."""
        self._left_out: dict[int, dict[int, int]] = {}
        """By epoch, and by the place at which a batch ends: how many samples it lacks that the ledger may not have
        counted. Two threads use it, one operation on a dict at a time."""
        self._left_out_so_far: tuple[int, int] = (0, 0)
        """The epoch, and how many samples of it this rank's part of a checkpoint counts as left out."""
        self._standing: Standing | None = None
        self._stale: StrataError | None = None
        self._is_to_begin = True
        self._is_doubtful = False
        """Whether the share is to be looked at again before anything is told."""
        self._at: tuple[int, int] = (0, 0)
        """The epoch, and how much of it is consumed."""
        self._told: tuple[int, int] = (0, 0)
        self._ends = 0
        """So much is consumed of an epoch that is over."""
        self._telling: Any = None
        self._dropping: weakref.finalize[..., Any] | None = None
        self.has_changed: Callable[[], bool] = lambda: False
        """See `Loader.goes_back_if`."""
        self._is_due = asyncio.Event()
        """An epoch is over. A checkpoint of the next could come first, and the ledger go on there without a proof."""

    def source(self, dataset: Source | None, format: str, cut: Cut) -> tuple[DatasetIndex, Cut]:
        """The files, and how they are cut, as is registered."""
        known = self.dataset
        same = Cut(known.shuffle, known.seed, known.shard_size)
        said = zip(Cut._fields, cut, same, strict=True)
        others = [(name, mine, its) for name, mine, its in said if mine not in (None, its)]
        if others:
            told = "; ".join(f"with {name}={its}, not {mine}" for name, mine, its in others)
            raise InvalidInput(f"dataset {known.dataset_id!r} is registered {told}: leave that out, or register it so")
        return files_of(known, dataset, format), same

    @property
    def is_fresh(self) -> bool:
        """Whether it is to begin: for the first time, or again."""
        return self._is_to_begin or self._stale is not None

    @property
    def carries_on(self) -> bool:
        """Whether nobody goes back when another is lost, as far as is known."""
        return self._standing is not None and self._standing.carries_on

    def look(self) -> None:
        """If the world is known to have changed, whether that matters. Who cannot ask goes on, and finds out later."""
        if not self.is_fresh and self._standing is not None and self._standing.generation < self.session.generation:
            self._is_doubtful = True
            if not self.session.is_silent:
                background.run(self._tell(LOOK_SECONDS))

    def forget(self) -> None:
        """Begin again, where all ranks are. What was given out and not worked on counts for nothing."""
        if not self._is_to_begin:
            epoch, through = self._at
            counted, left_out = self._left_out_so_far
            if counted == epoch:
                given_out = sum(count for place, count in self._left_out_of(epoch) if place > through)
                self._left_out_so_far = epoch, left_out - given_out
            self.at(epoch, through)
        self._is_to_begin = True

    def begin(self, ends: int) -> Standing:
        """Waits for all ranks. `ends`: so much is consumed of an epoch when it is over."""
        self._stop()
        self._ends = ends
        standing = background.run(self._begun())
        if standing.reading and standing.through and standing.reading != self.reading:
            raise InvalidInput(
                f"epoch {standing.epoch} of dataset {self.dataset.dataset_id!r} "
                f"{told_apart(standing.reading, self.reading)}"
            )
        self._left_out.clear()
        self._left_out_so_far = standing.epoch, 0 if standing.share.position else standing.left_out
        self._standing, self._stale, self._is_to_begin = standing, None, False
        self._at = self._told = standing.epoch, standing.through
        self._telling = asyncio.run_coroutine_threadsafe(self._keep_telling(), background.loop())
        return standing

    @property
    def reached(self) -> tuple[int, int]:
        """The epoch, and so much of it is consumed."""
        return self._at

    def check(self) -> None:
        """Raises why this rank's share is not what it was. To iterate again begins where all of them do."""
        if self._stale is not None:
            raise self._stale

    def at(self, epoch: int, through: int) -> None:
        """So far the loader has given out: the position that a checkpoint has."""
        counted, left_out = self._left_out_so_far
        told = self.dataset.version, epoch, [0, through] if through else [], self.reading
        self._where = Position(*told, left_out=left_out if counted == epoch else 0)

    def left_out(self, epoch: int, through: int, samples: int) -> None:
        """The batch that ends at this place, and is given out now, lacks so many samples of this rank's share."""
        counted, so_far = self._left_out_so_far
        self._left_out_so_far = epoch, samples + (so_far if counted == epoch else 0)
        of_epoch = self._left_out.setdefault(epoch, {})
        of_epoch[through] = samples
        if len(of_epoch) > MAX_LEFT_OUT_BATCHES:  # the ledger is away: it counts the two oldest when both are consumed
            oldest, next_one = list(of_epoch)[:2]
            of_epoch[next_one] += of_epoch.pop(oldest)

    def position(self) -> Position | None:
        return self._where

    def consumed(self, epoch: int, through: int, *, at_once: bool = False) -> None:
        """So far all that was given out was worked on. `at_once`: the ledger has it when this returns, and who waits
        for a coordinator that is away waits here."""
        is_over, self._at = epoch > self._at[0], (epoch, through)
        if at_once:
            background.run(self._tell(WAIT_SECONDS))
            self.check()
        elif is_over:
            background.loop().call_soon_threadsafe(self._is_due.set)

    def close_with(self, loader: object) -> None:
        """Close this, too, where its loader is dropped."""
        self._dropping = background.when_dropped(loader, self._finish, at_once=self._forget_position)

    def close(self) -> None:
        """Tell the ledger what it does not know yet, if the coordinator answers. Wait five seconds for a coordinator
        that is away, but only where an epoch is over."""
        if self._dropping is not None:
            self._dropping.detach()
        self._forget_position()
        self._finish()

    def _forget_position(self) -> None:
        """From here on another loader of this process may read the dataset."""
        self.session.reads(self.dataset.dataset_id, None)

    def _finish(self) -> None:
        can_tell = not self.session.is_over and (not self.session.is_silent or self._is_proof_owed)
        if self._standing is not None and self._stale is None and can_tell:
            background.run_while_alive(self._tell_the_rest)
        self._stop()
        self._where = None
        leave(self.session)

    @property
    def _is_proof_owed(self) -> bool:
        """Whether an epoch is over and the ledger has not heard so. A job may end while the coordinator is away."""
        return self._told[0] < self._at[0] or self._told[1] < self._at[1] == self._ends

    def _stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _begun(self) -> Standing:
        ends = time.monotonic() + WAIT_SECONDS
        while True:
            point = await self._recovered(ends)
            self._check_world()
            await self._meet(point, ends)
            self._check_world()
            ledger = await self._ledger(ends)
            ranks, rank = tuple(point.ranks), self._rank
            if (ledger.point, ledger.generation) == (point.point, point.generation) and rank in ranks:
                self._check_same(registered(ledger.dataset))
                share = Share(ranks.index(rank), len(ranks))
                known = ledger.dataset
                where = (known.epoch, known.consumed_samples, ledger.reading, known.left_out_samples)
                # How much was left out of what nobody told is not known any more: such epochs stay unproven.
                if share.position == 0 and ledger.reading in ("", self.reading) and not self.skips_damage:
                    await self._prove((point.generation, point.point), ledger.unproven_epochs)
                return Standing(point.point, point.generation, ranks, point.carries_on, share, *where)

    def _check_world(self) -> None:
        """Who has to go back before it reads must not wait here for others, who wait for it to go back with them."""
        if self.has_changed():
            raise StaleGeneration("the world has changed", generation=self.session.generation)

    async def _prove(self, under: tuple[int, int], epochs: Iterable[int]) -> None:
        """The coordinator was away when these ended, and everybody goes on from a checkpoint behind them. If it does
        not hear now how much they had, it does when somebody begins again."""
        with suppress(StrataError):
            for epoch in epochs:
                await self._report(under, epoch, self._ends, CALL_SECONDS, over=True)

    async def _ledger(self, ends: float) -> Any:
        """Without who is there, which is long where many are."""
        answers: list[Any] = []

        async def ask() -> str:
            call, name = self.session.call, self.dataset.dataset_id
            answers.append(await call("GetLedger", dataset_id=name, from_place=BEHIND_ALL))
            return ""

        await wait_for(ask, self._named, ends)
        return answers[0]

    @property
    def _rank(self) -> int:
        assert self.session.registered is not None, "whoever called is registered"
        return self.session.registered.rank

    async def _recovered(self, ends: float) -> Any:
        """The point that everybody goes on from; the latest known if nobody has said where that is."""
        return await recovery_point(self.session, self.session.who.world_size or 0, self._named, ends)

    @property
    def _named(self) -> str:
        return f"the loader of {self.dataset.dataset_id!r}"

    async def _meet(self, point: Any, ends: float) -> None:
        """All ranks say how far they are before any goes on: who has completed steps since the point, those; who has
        not takes up where the others are. Ranks that go on are told of at once, and again while others are awaited."""
        standing, under = self._standing, (point.generation, point.point)
        is_new = standing is None or standing.point != point.point
        if is_new:
            self._told = (await self._ledger(ends)).dataset.epoch, UNTOLD

        async def say() -> str:
            self._check_world()
            while True:
                epoch = self._told[0]
                over = not is_new and epoch < self._at[0]
                through = 0 if is_new else self._ends if over else self._at[1]
                answer = await self._report(under, epoch, through, CALL_SECONDS, over=over, joins=is_new)
                if answer.epoch == epoch:
                    return f"{answer.absent} ranks have not begun to read" if answer.absent else ""
                self._told = answer.epoch, UNTOLD  # all are through with that one: it is said of the next, too
                self._at = self._at if is_new else max(self._at, (answer.epoch, 0))

        with suppress(StaleGeneration):  # the world changed meanwhile, which whoever asks for the ledger sees
            await wait_for(say, self._named, ends)

    def _check_same(self, now: RegisteredDataset) -> None:
        if now.version != self.dataset.version:
            raise InvalidInput(
                f"dataset {now.dataset_id!r} is at version {now.version} now, and this loader reads version "
                f"{self.dataset.version}: make another"
            )

    async def _keep_telling(self) -> None:
        ticks = 0
        while self._stale is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), TELL_SECONDS)
            self._is_due.clear()
            ticks += 1
            if ticks % AGAIN_TICKS == 0:
                self._told = self._told[0], UNTOLD
            try:
                await self._tell(TELL_SECONDS)
            except Exception:
                logger.exception("the ledger of %s is not told of progress", self.dataset.dataset_id)

    async def _tell(self, seconds: float) -> None:
        """All that is not told yet, in order. What the coordinator does not hear now is told again."""
        ends = time.monotonic() + seconds
        while self._stale is None:
            try:
                if self._is_doubtful:
                    await self._look_again(max(TELL_SECONDS, ends - time.monotonic()))
                    self._is_doubtful = False
                    continue
                await self._tell_now(max(TELL_SECONDS, ends - time.monotonic()))
                return
            except StaleGeneration:
                self._is_doubtful = True
            except StrataError as error:
                if not passes(error):
                    self._stale = error
                    return
                if time.monotonic() > ends:
                    return
                await asyncio.sleep(PAUSE_SECONDS)

    async def _tell_the_rest(self) -> None:
        """Others may have to say first that they are through with an epoch."""
        ends = time.monotonic() + CLOSE_SECONDS
        self._told = self._told[0], UNTOLD  # a coordinator that was started again has forgotten what it was told
        await self._tell(CLOSE_SECONDS)
        while self._told != self._at and self._stale is None and time.monotonic() < ends:
            await asyncio.sleep(PAUSE_SECONDS)
            await self._tell(PAUSE_SECONDS)

    async def _tell_now(self, within: float) -> None:
        """Until all is told, or others have to be through with an epoch first: then it is told again."""
        standing = self._standing
        assert standing is not None, "it has begun"
        while self._told != (at := self._at):
            epoch = self._told[0]
            over = epoch < at[0]
            through = self._ends if over else at[1]
            answer = await self._report((standing.generation, standing.point), epoch, through, within, over=over)
            if over and answer.epoch == epoch:
                return
            self._told = (epoch + 1, UNTOLD) if over else (epoch, through)

    async def _report(self, under: tuple[int, int], epoch: int, through: int, within: float, **more: bool) -> Any:
        """`under`: the generation and the point."""
        left_out = {place: count for place, count in self._left_out_of(epoch) if place <= through}
        answer = await self.session.call(
            "ReportBatches",
            within=min(within, CALL_SECONDS),
            dataset_id=self.dataset.dataset_id,
            version=self.dataset.version,
            epoch=epoch,
            generation=under[0],
            point=under[1],
            through=through,
            reading=self.reading,
            left_out=left_out,
            **more,
        )
        if answer.epoch > epoch:
            self._left_out.pop(epoch, None)
        elif of_epoch := self._left_out.get(epoch):
            for place, _ in self._left_out_of(epoch):
                if place <= answer.consumed_samples:
                    of_epoch.pop(place, None)
        return answer

    def _left_out_of(self, epoch: int) -> list[tuple[int, int]]:
        return list(self._left_out.get(epoch, {}).items())

    async def _look_again(self, within: float) -> None:
        """The world has changed. In a job that goes back when somebody is lost that is all the same while nobody does:
        a process was slow to be heard, perhaps. One that carries on is shared out anew."""
        standing = self._standing
        assert standing is not None, "it has begun"
        within = min(within, CALL_SECONDS)
        ledger = await self.session.call("GetLedger", within=within, dataset_id=self.dataset.dataset_id)
        ranks = tuple(holder.rank for holder in ledger.holders)
        if ledger.point != standing.point:
            what = "the job was taken back to a recovery point"
        elif standing.carries_on and ranks != standing.ranks:
            what = f"the job has ranks {_listed(ranks)} now, and had {_listed(standing.ranks)}"
        elif ledger.generation != standing.generation:
            self._standing = standing._replace(generation=ledger.generation)
            return
        else:
            what = "the job was rolled back"
        self._stale = StaleGeneration(
            f"{what} since this loader of {self.dataset.dataset_id!r} began: load the checkpoint that all ranks go on "
            "from, if they go back to one, and iterate again, which begins where all of them do",
            generation=ledger.generation,
        )


def _listed(ranks: tuple[int, ...]) -> str:
    return f"{ranks[0]} to {ranks[-1]} ({len(ranks)})" if len(ranks) > 8 else ", ".join(map(str, ranks))
