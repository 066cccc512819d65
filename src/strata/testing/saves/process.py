"""One rank of a simulated job: a process with the real manager, session and saver, that trains, saves and dies."""

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec

from strata.checkpoint.checkpoints import Looked
from strata.checkpoint.joining import Seat
from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.matching import Load
from strata.checkpoint.saver import _Save
from strata.checkpoint.saving import as_bytes
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.store import Folder
from strata.config import Config
from strata.errors import NotFound, StrataError
from strata.rpc import Channel
from strata.session import Session, Who
from strata.testing.faulty import FaultyStorage
from strata.testing.saves.depot import ProcessStorage
from strata.testing.saves.virtualtime import Owner
from strata.testing.saves.wire import VirtualChannel

if TYPE_CHECKING:
    from strata.testing.saves.worlds import World

JOB = "job"
LOADS = 4
START = -1


class Content(msgspec.Struct, frozen=True):
    """What a rank's part says of itself: who saved it, in which world, and where that had gone on from."""

    world: int
    rank: int
    step: int
    base_world: int
    base_step: int
    padding: str = ""


class Process:
    """A rank of a world. `over` is done when it has ended, whichever way."""

    def __init__(self, world: "World", rank: int) -> None:
        self.world, self.rank, self.sim = world, rank, world.sim
        self.name = f"{world.number}.{rank}"
        self.owner = Owner(self.name)
        plan = self.sim.plan
        self.rng = Random(f"{plan.seed} process {self.name}")
        self.faulty = FaultyStorage(self.sim.depot, seed=self.rng.getrandbits(32), faults=self.sim.faults)
        self.channel = VirtualChannel(self.sim.network, self.owner)
        self.base = (START, 0)
        self.looked_alone = False
        """Whether it did not hear from the coordinator what others go on from."""
        self.ready = asyncio.Event()
        """Set when it knows where it goes on from."""
        self.saved = 0
        self.slowest = 0.0
        """The longest that it has waited for a save."""
        self._saving: asyncio.Task[None] | None = None
        self.step = START
        self.stop_after: int | None = None

    def start(self) -> None:
        self.task = self.owner.run(self._live())
        self.task.add_done_callback(lambda _: self.world.ended(self))

    def kill(self) -> None:
        """A storage that was stuck on its calls carries them out now, if ever."""
        if self.owner.alive:
            self.sim.note(self.name, "dies")
            self.owner.kill()
        self.faulty.release()

    @property
    def has_heard(self) -> bool:
        """Whether the coordinator told it where all go on from."""
        seat = self.manager._seat
        return seat is not None and seat.council.point is not None

    # -- its life ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            self._make()
            await self._recover()
            await self._train()
        except StrataError as error:
            self.sim.note(self.name, f"ends: {type(error).__name__}: {error}")

    def _make(self) -> None:
        self.manager = SimulatedManager(self, ProcessStorage(self.sim.depot, self.faulty, self.owner))
        self.saver: Any = self.manager._saver
        self.saver._writer = f"host:{self.name}:{self.rng.getrandbits(32):08x}"

    async def _recover(self) -> None:
        """Where to go on from; the state's content says whose it is."""
        found: Content | None = None
        for left in reversed(range(LOADS)):
            try:
                found = await self._loaded()
                break
            except NotFound as error:
                if self.sim.plan.coordinator or self.rank == 0:
                    self.sim.note(self.name, f"goes on from the start: {error}")
                break
            except StrataError as error:
                self.sim.note(self.name, f"could not load: {type(error).__name__}: {error}")
                if not left:
                    raise
                await asyncio.sleep(0.5)
        if found is not None:
            self.base = (found.step, found.world)
            self.sim.note(self.name, f"goes on from step {found.step} of world {found.world}")
            self.sim.checks.loaded(self, found)
        self.ready.set()
        self.sim.checks.goes_on(self)
        await self.world.meet()

    async def _loaded(self) -> Content | None:
        if self.sim.plan.coordinator:
            return await self._load(None)
        # Then it is for the job to agree: rank 0 tells the others.
        if self.rank == 0:
            try:
                found = await self._load(None)
            except NotFound:
                await self.world.tell_step(None)
                raise
            await self.world.tell_step(found.step)
            return found
        step = await self.world.heard_step()
        return None if step is None else await self._load(step)

    async def _load(self, step: int | None) -> Content:
        state = await self.manager._load(Load(step), self.manager.config.stuck_seconds)
        return msgspec.json.decode(bytes(state), type=Content)

    async def _train(self) -> None:
        self.step = self.base[0]
        while self.step != self.stop_after:
            self.step += 1
            await asyncio.sleep(self.rng.uniform(*self.sim.plan.step_seconds))
            await self.owner.act()
            await self.world.meet()
            if not await self.save(self.step):
                return
        if self._saving is not None:
            await self._saving

    def content(self, step: int) -> Content:
        padding = "x" * self.rng.randrange(200)
        return Content(self.world.number, self.rank, step, self.base[1], self.base[0], padding)

    async def save(self, step: int) -> bool:
        """Whether it may go on. As `begin` does for a state of bytes, which is not copied."""
        saver = self.saver
        saver._check_failures(hurried=False)
        saver._calls[step] += 1
        handle = saver._new_handle(step)
        data = as_bytes(msgspec.json.encode(self.content(step)))
        saving = _Save(handle, data, None, 0, {}, time.perf_counter(), hurried=False)
        self._saving = asyncio.ensure_future(saver._save(saving))  # it deletes what is not kept when the save is over
        began = asyncio.get_running_loop().time()
        await asyncio.wait({asyncio.wrap_future(handle._future)})
        self.slowest = max(self.slowest, asyncio.get_running_loop().time() - began)
        error = handle.error()
        why = f": {type(error).__name__}: {error}" if error is not None else ""
        self.sim.note(self.name, f"step {step} is {handle.status}{why or ': ' * bool(handle.skipped) + handle.skipped}")
        self.sim.outcomes[handle.status] += 1
        if handle.status == "committed":
            self.saved += 1
            self.sim.checks.told(self, step)
        return saver._superseded is None


class SimulatedManager(CheckpointManager):
    """The real one, but for where its session comes from."""

    def __init__(self, process: Process, storage: ProcessStorage) -> None:
        self._process = process
        plan = process.sim.plan
        super().__init__(
            storage,
            job_id=JOB,
            rank=process.rank,
            world_size=plan.ranks,
            run_id=f"run-{process.world.number}",
            coordinator_url="virtual" if plan.coordinator else "",
            config=CheckpointManagerConfig(
                retention=plan.retention,
                memory_bytes=16 << 20,
                stuck_seconds=plan.stuck_seconds,
                ranks_seconds=plan.ranks_seconds,
                coordinator_seconds=plan.coordinator_seconds,
            ),
        )

    def _taken_seat(self, where: Session | Config, world: tuple[int, int, str | None]) -> Seat:
        process = self._process
        rank, size, _ = world
        is_open = process.sim.plan.is_open
        who = Who(JOB, f"rank-{rank}", rank, None if is_open else size)
        session = Session(cast(Channel, process.channel), who)
        process.owner.run(session.live())
        return _Seat(process, self._checkpoints, lambda: session, world, self.config, is_open=is_open)


class _Seat(Seat):
    """The real one; whether it was given a point is noted."""

    def __init__(self, process: Process, *given: Any, is_open: bool) -> None:
        super().__init__(*given, is_open=is_open)
        self._process = process

    async def point(self, looked: Looked) -> Folder | None:
        found = await super().point(looked)
        self._process.looked_alone = found is None
        return found
