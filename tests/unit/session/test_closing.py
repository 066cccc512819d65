"""A session that is closed while it carries out a command."""

import asyncio

from strata.testing.virtual_job import VirtualJob, on_virtual_job
from strata.v1 import coordinator_pb2 as pb


def test_what_it_was_commanded_ends_before_the_channel_that_it_speaks_on() -> None:
    """Else it would be told that this was closed, which is no failure of anybody's."""

    async def closes(job: VirtualJob) -> None:
        worker, began, found = job.worker("w0", 0, 1), asyncio.Event(), list[bool]()

        async def put(_: pb.Command) -> None:
            began.set()
            try:
                await asyncio.sleep(3600)
            finally:
                found.append(worker.channel.closed)

        worker.session.on(pb.Command.KIND_PUT_MANIFEST, put)
        attempt = (await worker.call("BeginCheckpoint", step=1)).attempt
        await worker.call("AckCheckpoint", attempt=attempt, digest="d", part_bytes=1)
        await began.wait()
        await worker.owner.run(worker.session.close())
        assert (found, worker.channel.closed) == ([False], True)

    on_virtual_job(closes)
