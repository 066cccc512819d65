"""A coordinator and the sessions of its workers on virtual time: for laws about leases, silence and coming back.

    def test_one_that_is_silent_for_too_long_comes_back_as_another():
        async def silent(job: VirtualJob) -> None:
            worker = job.worker("w0")
            await worker.call("ListCheckpoints")
            worker.owner.freeze()
            await asyncio.sleep(10 * LEASE)
            ...

        on_virtual_job(silent)

Minutes of leases pass at once, and each time in the same order. Sessions, the hub and the machine are the real ones,
the network and the disk those of `strata.testing.saves`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from strata.core.settings import Policy
from strata.core.state import Member
from strata.rpc import Channel
from strata.session import Session, Who
from strata.testing.saves.host import CoordinatorHost
from strata.testing.saves.virtualtime import Owner, on_virtual_time
from strata.testing.saves.wire import Network, VirtualChannel
from strata.testing.simulation.plan import Chaos

T = TypeVar("T")
CALM = Chaos(lost=0.0, doubled=0.0, late=0.0)
END_SECONDS = 10_000.0
"""Whatever a test waits for has come to be by then, or never does."""


class VirtualWorker:
    """A process with a session. `owner` can be frozen, thawed and killed."""

    def __init__(self, network: Network, who: Who) -> None:
        self.owner = Owner(who.worker)
        self.channel = VirtualChannel(network, self.owner)
        self.session = Session(cast(Channel, self.channel), who)
        self.owner.run(self.session.live())

    async def call(self, method: str, **fields: Any) -> Any:
        return await self.owner.run(self.session.call(method, **fields))


class VirtualJob:
    """The coordinator is `host`, which can crash and start again; `network` can cut workers off."""

    def __init__(self, name: str, policy: Policy, seed: int) -> None:
        self.name = name
        self.host = CoordinatorHost(policy, seed)
        self.network = Network(self.host, seed, CALM)

    def worker(self, name: str, rank: int | None = None, world_size: int | None = None) -> VirtualWorker:
        """One more process."""
        return VirtualWorker(self.network, Who(self.name, name, rank, world_size))

    def member(self, worker: str) -> Member:
        """As the coordinator has it now."""
        return self.host.job(self.name).world.members[worker]


async def until(holds: Callable[[], T]) -> T:
    """Returns the first answer that is true, looking ten times in a virtual second."""
    clock = asyncio.get_running_loop().time
    ends = clock() + END_SECONDS
    while not (found := holds()):
        assert clock() < ends, f"it is {found!r}, and nothing will change that"
        await asyncio.sleep(0.1)
    return found


def on_virtual_job(test: Callable[[VirtualJob], Awaitable[T]], policy: Policy | None = None, seed: int = 0) -> T:
    """What the test gives, run with a coordinator that has just started."""

    async def run() -> T:
        job = VirtualJob("job", policy or Policy(), seed)
        await job.host.start()
        return await test(job)

    with on_virtual_time(seed) as loop:
        try:
            return loop.run_until_complete(run())
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1.0))
