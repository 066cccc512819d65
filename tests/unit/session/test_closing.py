"""A session that is closed while it carries out a command."""

import asyncio

from strata import background
from strata.rpc import Channel
from strata.session import Session, Who
from strata.v1 import coordinator_pb2 as pb

PUT = pb.Command(kind=pb.Command.KIND_PUT_MANIFEST, attempt=1)


def test_what_it_was_commanded_ends_before_the_channel_that_it_speaks_on() -> None:
    """Else it would be told that this was closed, which is no failure of anybody's."""

    async def tried() -> list[bool]:
        channel, began, found = Channel("127.0.0.1:1"), asyncio.Event(), []
        session = Session(channel, Who("job", "w0"))

        async def put(_: pb.Command) -> None:
            began.set()
            try:
                await asyncio.sleep(3600)
            finally:
                found.append(channel.closed)

        session.on(pb.Command.KIND_PUT_MANIFEST, put)
        session.start()
        session._begin(PUT)
        await began.wait()
        await session.close()
        return found

    assert background.run(tried()) == [False]
