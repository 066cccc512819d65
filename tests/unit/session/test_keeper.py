"""For whom the helper speaks, and until when: the real one, and a real coordinator, on virtual time."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from strata.core.settings import Policy
from strata.errors import Superseded
from strata.rpc import Channel, RpcError
from strata.session.keepalive import IDLE_SECONDS, TELL_SECONDS, Keeper
from strata.session.lines import Beat, Goodbye, Hello, Left, Line, Lines, Tick, encoded
from strata.session.watching import Watched
from strata.testing.saves.virtualtime import Owner
from strata.testing.saves.wire import VirtualChannel
from strata.testing.virtual_job import VirtualJob, on_virtual_job
from strata.wire.errors import from_rpc
from strata.wire.remotes import remote, request_for

LEASE, HEARTBEAT = Policy().lease_seconds, Policy().heartbeat_seconds


class Process:
    """The one that is watched, which runs as the test says."""

    pid = 4711

    def __init__(self) -> None:
        self.is_halted = False
        self._over = asyncio.Event()

    @property
    def is_dead(self) -> bool:
        return self._over.is_set()

    def die(self) -> None:
        self._over.set()

    async def died(self) -> None:
        await self._over.wait()

    def close(self) -> None:
        """Nothing is open."""


class Scene:
    """A process that registers, beats and says lines to its helper only as the test says."""

    def __init__(self, job: VirtualJob, stall_seconds: float) -> None:
        self.job, self.process = job, Process()
        self._channel = VirtualChannel(job.network, Owner("process"))
        self._theirs, self._pipe = os.pipe()
        self._now = asyncio.get_running_loop().time
        self.connections: list[VirtualChannel] = []
        hello = Hello(job.name, "w0", None, stall_seconds, {})
        self._keeper = Keeper(
            hello, Lines(self._theirs), cast(Watched, self.process), self._connect, asyncio.get_running_loop().time
        )
        self.helper = asyncio.ensure_future(self._keeper.keep([]))

    def _connect(self) -> Channel:
        self.connections.append(VirtualChannel(self.job.network, Owner("helper")))
        return cast(Channel, self.connections[-1])

    @property
    def spoken(self) -> int:
        """How often the helper has spoken to the coordinator."""
        return sum(each.calls for each in self.connections)

    @property
    def status(self) -> str:
        return self.job.member("w0").status

    async def call(self, method: str, **fields: Any) -> Any:
        try:
            return await self._channel.call(
                remote(method), request_for(method, job_id=self.job.name, worker_id="w0", **fields)
            )
        except RpcError as error:
            raise from_rpc(error) from None

    async def register(self, nonce: str = "first", previous: int = 0) -> Any:
        return await self.call("Register", nonce=nonce, rank=0, world_size=1, previous_incarnation=previous)

    def beat(self, who: Any) -> Beat:
        return Beat(who.incarnation, who.heartbeat_seconds, self._now())

    def tick(self) -> Tick:
        return Tick(self._now())

    def say(self, *lines: Line) -> None:
        os.write(self._pipe, b"".join(encoded(line) for line in lines))
        self._keeper.hear()

    async def close(self) -> None:
        self.process.die()
        await self.helper
        os.close(self._pipe)
        os.close(self._theirs)


@asynccontextmanager
async def scene(job: VirtualJob, stall_seconds: float) -> AsyncIterator[Scene]:
    made = Scene(job, stall_seconds)
    try:
        yield made
    finally:
        await made.close()


def play(test: Callable[[Scene], Awaitable[None]], stall_seconds: float = 1e6) -> None:
    async def played(job: VirtualJob) -> None:
        async with scene(job, stall_seconds) as made:
            await asyncio.sleep(0.1)
            await test(made)

    on_virtual_job(played)


def test_it_speaks_for_a_process_that_says_nothing_for_as_long_as_that_lives() -> None:
    async def silent(scene: Scene) -> None:
        who = await scene.register()
        scene.say(scene.beat(who))
        await asyncio.sleep(20 * LEASE)
        assert (scene.status, scene.job.member("w0").incarnation) == ("live", who.incarnation)

    play(silent)


def test_it_says_nothing_while_the_process_itself_does() -> None:
    async def beats(scene: Scene) -> None:
        who = await scene.register()
        for _ in range(20):
            await scene.call("Heartbeat", incarnation=who.incarnation)
            scene.say(scene.beat(who))
            await asyncio.sleep(0.9 * HEARTBEAT)
        assert scene.spoken == 0

    play(beats)


def test_nobody_speaks_for_a_process_that_is_stopped_until_it_goes_on_and_has_come_back() -> None:
    async def stopped(scene: Scene) -> None:
        who = await scene.register()
        scene.say(scene.beat(who))
        await asyncio.sleep(LEASE)
        assert scene.spoken > 0
        scene.process.is_halted = True
        await asyncio.sleep(LEASE + 2 * HEARTBEAT)
        assert scene.status == "expired"
        again = await scene.register("another", who.incarnation)
        scene.process.is_halted = False
        scene.say(scene.beat(again))
        await asyncio.sleep(20 * LEASE)
        assert (scene.status, scene.job.member("w0").incarnation) == ("live", again.incarnation)

    play(stopped)


def test_a_process_that_goes_on_before_its_lease_ran_out_is_spoken_for_again() -> None:
    async def stopped(scene: Scene) -> None:
        scene.process.is_halted = True
        scene.say(scene.beat(await scene.register()))
        await asyncio.sleep(2 * HEARTBEAT)
        assert scene.spoken == 0
        scene.process.is_halted = False
        await asyncio.sleep(20 * LEASE)
        assert scene.status == "live"

    play(stopped)


def test_nobody_speaks_for_a_process_that_hangs() -> None:
    async def hangs(scene: Scene) -> None:
        scene.say(scene.beat(await scene.register()))
        await asyncio.sleep(2.5 * LEASE)
        scene.say(scene.tick())  # the coordinator did not answer it, but it lives
        await asyncio.sleep(2.5 * LEASE)
        assert scene.status == "live"
        await asyncio.sleep(2 * LEASE)
        assert scene.status == "expired"

    play(hangs, stall_seconds=3 * LEASE)


def test_nobody_speaks_for_an_incarnation_that_was_left() -> None:
    async def leaves(scene: Scene) -> None:
        scene.say(scene.beat(await scene.register()))
        await asyncio.sleep(2 * LEASE)
        assert scene.status == "live"
        scene.say(Left())
        await asyncio.sleep(2 * LEASE)
        assert scene.status == "expired"
        assert not scene.helper.done()

    play(leaves)


def test_one_that_the_coordinator_refused_is_not_spoken_for_until_it_speaks_itself() -> None:
    async def refused(scene: Scene) -> None:
        who = await scene.register()
        scene.say(scene.beat(who))
        again = await scene.register("another", who.incarnation)
        with pytest.raises(Superseded):
            await scene.call("Heartbeat", incarnation=who.incarnation)
        await asyncio.sleep(2 * LEASE)
        assert (scene.status, scene.spoken) == ("expired", 1)
        third = await scene.register("third", again.incarnation)
        scene.say(scene.beat(third))
        await asyncio.sleep(20 * LEASE)
        assert (scene.status, scene.job.member("w0").incarnation) == ("live", third.incarnation)

    play(refused)


@pytest.mark.parametrize("seconds", [1.0, 3 * LEASE])
def test_a_coordinator_that_was_away_hears_of_it_again(seconds: float) -> None:
    async def away(scene: Scene) -> None:
        who = await scene.register()
        scene.say(scene.beat(who))
        scene.job.host.crash()
        await asyncio.sleep(seconds)
        await scene.job.host.start()
        await asyncio.sleep(20 * LEASE)
        assert (scene.status, scene.job.member("w0").incarnation) == ("live", who.incarnation)

    play(away)


def test_a_death_is_told_at_once_and_ends_it() -> None:
    async def dies(scene: Scene) -> None:
        scene.say(scene.beat(await scene.register()))
        scene.process.die()
        await asyncio.wait_for(scene.helper, 1.0)
        assert scene.status == "died"
        assert "process 4711 on " in scene.job.member("w0").reason

    play(dies)


def test_a_coordinator_that_cannot_be_told_of_a_death_keeps_it_for_a_few_seconds_only() -> None:
    async def dies(scene: Scene) -> None:
        scene.say(scene.beat(await scene.register()))
        scene.job.host.crash()
        scene.process.die()
        await asyncio.wait_for(scene.helper, TELL_SECONDS + 0.1)

    play(dies)


def test_a_connection_that_it_does_not_need_is_given_up_and_made_again() -> None:
    async def idles(scene: Scene) -> None:
        who = await scene.register()
        scene.say(scene.beat(who))
        await asyncio.sleep(LEASE)
        spoken = scene.spoken
        for _ in range(int(3 * IDLE_SECONDS / HEARTBEAT)):
            await scene.call("Heartbeat", incarnation=who.incarnation)
            scene.say(scene.beat(who))
            await asyncio.sleep(0.9 * HEARTBEAT)
        assert (len(scene.connections), scene.spoken) == (1, spoken)
        await asyncio.sleep(2 * LEASE)
        assert (len(scene.connections), scene.status) == (2, "live")

    play(idles)


@pytest.mark.parametrize("last", [Goodbye(), Left()])
def test_who_has_left_before_it_ended_did_not_die(last: Line) -> None:
    async def ends(scene: Scene) -> None:
        scene.say(scene.beat(await scene.register()), last)
        scene.process.die()
        await asyncio.wait_for(scene.helper, 1.0)
        assert scene.status == "live"

    play(ends)
