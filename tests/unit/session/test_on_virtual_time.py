"""A worker's session with a coordinator, on virtual time: leases, silence, coming back, and commands."""

import asyncio

import pytest

from strata.core.settings import Policy
from strata.errors import Expired, Refused, StrataError
from strata.rpc import RpcError
from strata.session import is_silence
from strata.testing.virtual_job import VirtualJob, on_virtual_job, until
from strata.v1 import coordinator_pb2 as pb

LEASE, HEARTBEAT = Policy().lease_seconds, Policy().heartbeat_seconds


def test_a_worker_is_live_for_as_long_as_its_session_lasts_and_leaves_with_it() -> None:
    async def lives(job: VirtualJob) -> None:
        worker = job.worker("w0", 0, 1)
        before = (await worker.session.present(1.0)).incarnation
        await asyncio.sleep(20 * LEASE)
        assert (job.member("w0").status, job.member("w0").incarnation) == ("live", before)
        await worker.owner.run(worker.session.close())
        assert job.member("w0").status == "left"
        with pytest.raises(Expired, match="has left"):
            await worker.call("ListCheckpoints")

    on_virtual_job(lives)


def test_a_worker_that_stood_still_for_longer_than_its_lease_comes_back_as_another() -> None:
    async def stands_still(job: VirtualJob) -> None:
        worker = job.worker("w0", 0, 1)
        before = await worker.session.present(1.0)
        worker.owner.freeze()
        await asyncio.sleep(LEASE - HEARTBEAT)
        assert job.member("w0").status == "live", "its lease is not over, whenever it was heard last"
        await asyncio.sleep(2 * HEARTBEAT)
        assert job.member("w0").status == "expired", "nobody waits much longer"
        await asyncio.sleep(LEASE)
        worker.owner.thaw()
        await until(lambda: worker.session.incarnation > before.incarnation)
        with pytest.raises(Expired, match="has come back"):  # a call that took so long: it is not told to stop for good
            await worker.session.call_as("Recover", before, 5.0, {})
        await worker.call("Recover")
        assert job.member("w0").status == "live"

    on_virtual_job(stands_still)


@pytest.mark.parametrize("seconds", [1.0, 3 * LEASE])
def test_a_restarted_coordinator_fails_nobody(seconds: float) -> None:
    async def restarts(job: VirtualJob) -> None:
        worker = job.worker("w0", 0, 1)
        before = (await worker.session.present(1.0)).incarnation
        job.host.crash()
        with pytest.raises(RpcError) as silence:
            await worker.call("ListCheckpoints", within=0.5)
        assert is_silence(silence.value)
        await asyncio.sleep(seconds)
        await job.host.start()
        await worker.call("ListCheckpoints")
        await asyncio.sleep(3 * LEASE)
        assert (job.member("w0").status, job.member("w0").incarnation) == ("live", before)
        assert worker.session.incarnation == before

    on_virtual_job(restarts)


def test_a_restarted_coordinator_gives_everybody_one_full_lease_and_no_more() -> None:
    async def restarts(job: VirtualJob) -> None:
        worker = job.worker("w0", 0, 1)
        await worker.session.present(1.0)
        worker.owner.freeze()
        job.host.crash()
        await asyncio.sleep(3 * LEASE)
        await job.host.start()
        await asyncio.sleep(LEASE - 0.1)
        assert job.member("w0").status == "live"
        await asyncio.sleep(0.1 + 2 * Policy().sweep_seconds)
        assert job.member("w0").status == "expired"

    on_virtual_job(restarts)


def test_a_session_begins_before_there_is_a_coordinator() -> None:
    async def begins(job: VirtualJob) -> None:
        job.host.crash()
        worker = job.worker("w0", 0, 1)
        await asyncio.sleep(100)
        assert worker.session.registered is None
        await job.host.start()
        await worker.call("ListCheckpoints")

    on_virtual_job(begins)


def test_a_rank_that_is_refused_for_now_is_told_why_and_tried_again() -> None:
    async def tries_again(job: VirtualJob) -> None:
        holder = job.worker("another", 0, 1)
        await holder.session.present(1.0)
        worker = job.worker("w0", 0, 1)
        with pytest.raises(RpcError, match="rank 0 is held by worker 'another'"):
            await worker.call("ListCheckpoints", within=1.0)
        await holder.owner.run(holder.session.close())
        await worker.call("ListCheckpoints")

    on_virtual_job(tries_again)


def test_a_command_is_carried_out_once_however_often_it_comes() -> None:
    async def commands(job: VirtualJob) -> None:
        worker, seen = job.worker("w0", 0, 1), list[int]()

        async def put(command: pb.Command) -> None:
            seen.append(command.attempt)
            await asyncio.sleep(5 * Policy().heartbeat_seconds)
            await worker.session.call("CommitCheckpoint", attempt=command.attempt)

        worker.session.on(pb.Command.KIND_PUT_MANIFEST, put)
        attempt = (await worker.call("BeginCheckpoint", step=1)).attempt
        await worker.call("AckCheckpoint", attempt=attempt, digest="d", part_bytes=1)
        await until(lambda: job.host.job(job.name).attempts[attempt].status == "committed")
        assert seen == [attempt]

    on_virtual_job(commands)


def test_whatever_becomes_of_one_who_carries_out_a_command_the_others_are_asked() -> None:
    async def commands(job: VirtualJob) -> None:
        worker = job.worker("w0", 0, 1)

        async def fail(command: pb.Command) -> None:
            raise Refused("this one cannot")

        async def put(command: pb.Command) -> None:
            await worker.session.call("CommitCheckpoint", attempt=command.attempt)

        worker.session.on(pb.Command.KIND_PUT_MANIFEST, fail)
        worker.session.on(pb.Command.KIND_PUT_MANIFEST, put)
        attempt = (await worker.call("BeginCheckpoint", step=1)).attempt
        await worker.call("AckCheckpoint", attempt=attempt, digest="d", part_bytes=1)
        await until(lambda: job.host.job(job.name).attempts[attempt].status == "committed")

    on_virtual_job(commands)


def test_a_silent_network_is_no_failure() -> None:
    async def is_silent(job: VirtualJob) -> None:
        worker = job.worker("w0", 0, 1)
        before = (await worker.session.present(1.0)).incarnation
        job.network.is_silent = True
        with pytest.raises(StrataError) as silence:
            await worker.call("ListCheckpoints", within=0.5)
        assert is_silence(silence.value)
        await asyncio.sleep(LEASE / 2)
        job.network.is_silent = False
        await worker.call("ListCheckpoints")
        assert worker.session.incarnation == before

    on_virtual_job(is_silent)
