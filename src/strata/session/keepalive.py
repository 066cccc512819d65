"""The helper beside a training process: it speaks for the process while that cannot, and tells at once that it died.

Run by `Pulse` as `python -m strata.session.keepalive PID`, with what it has to know on standard input. A process that
holds Python's lock for seconds sends no heartbeats, and is neither dead nor gone; so whoever watches it vouches for it.

The law: it speaks only for a process that lives, is not stopped, and was heard within `stall_seconds`; only for the
incarnation that the process named last; and never again for one that the coordinator refused. It ends with the process,
after at most TELL_SECONDS, or at its goodbye.
"""

import asyncio
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from strata import background
from strata.config import Config
from strata.errors import Fenced, InvalidInput, StrataError
from strata.logs import get_logger
from strata.rpc import Channel, ChannelOptions, RpcError
from strata.rpc.client import load
from strata.session.lines import Beat, Goodbye, Hello, Left, Line, Lines, Tick
from strata.session.watching import Watched
from strata.wire.connecting import channel_to
from strata.wire.errors import from_rpc
from strata.wire.remotes import remote, request_for

logger = get_logger("strata.keepalive")

DUE = 0.95
"""Of the heartbeat interval: a process that runs has been heard by then, and there is time left to be heard in its
place."""
LOOK_AGAIN = 0.1
"""Of the interval: after it was stopped, or nobody answered."""
TELL_SECONDS = 5.0
"""The longest that it goes on after the process has died."""
HELLO_SECONDS = 10.0
IDLE_SECONDS = 60.0
"""A connection that nobody needs for so long is given up: there are as many helpers as workers."""

_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A launcher sends these to all processes of a job (Slurm the last two, as notice of an end), and a trainer may take
its time to end in good order."""


class Keeper:
    """Speaks for one process, from its first word to its death or its goodbye. `clock` is the one of its lines."""

    def __init__(
        self,
        hello: Hello,
        lines: Lines,
        watched: Watched,
        connect: Callable[[], Channel],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hello, self._lines, self._watched = hello, lines, watched
        self._connect, self._clock = connect, clock
        self._channel: Channel | None = None
        self._beat: Beat | None = None
        self._heard = self._renewed = self._used = 0.0
        self._parted = asyncio.Event()
        self._speaking: asyncio.Task[None] | None = None
        self._why_silent = ""

    async def keep(self, said: list[Line]) -> None:
        """`said` is what came along with the hello."""
        for line in said:
            self._take(line)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._lines.fd, self.hear)
        ends = [asyncio.ensure_future(self._watched.died()), asyncio.ensure_future(self._parted.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            loop.remove_reader(self._lines.fd)
            self.hear()  # its last words
            if self._speaking is not None:
                self._speaking.cancel()
            if not self._parted.is_set() and self._beat is not None:
                await self._tell_death(self._beat)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            self._watched.close()

    # -- what it says of itself --------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Take what the process has said by now."""
        for line in self._lines.read():
            self._take(line)
        if self._lines.ended:
            asyncio.get_running_loop().remove_reader(self._lines.fd)

    def _take(self, line: Line) -> None:
        if isinstance(line, Beat):
            self._heard, self._renewed = line.at, max(self._renewed, line.at)
            self._speak_for(line)
        elif isinstance(line, Tick):
            self._heard = line.at
        elif isinstance(line, Left):
            self._speak_for(None)
        elif isinstance(line, Goodbye):
            self._parted.set()

    def _speak_for(self, beat: Beat | None) -> None:
        former, self._beat = self._beat, beat
        same = former is not None and beat is not None and former.incarnation == beat.incarnation
        if same and self._speaking is not None and not self._speaking.done():
            return
        if self._speaking is not None:
            self._speaking.cancel()
        self._speaking = None if beat is None else asyncio.ensure_future(self._speak())

    # -- what is said for it -----------------------------------------------------------------------------------------

    async def _speak(self) -> None:
        """Until it has left, or is refused: both end this."""
        while self._beat is not None:
            beat = self._beat
            wait = self._renewed + DUE * beat.heartbeat_seconds - self._clock()
            if wait > 0:
                await self._idle()
                await asyncio.sleep(wait)
            elif not self._may_speak() or not await self._vouched(beat):
                await asyncio.sleep(LOOK_AGAIN * beat.heartbeat_seconds)

    def _may_speak(self) -> bool:
        silent = self._clock() - self._heard
        why = ""
        if silent > self._hello.stall_seconds:
            why = f"it has done nothing for {self._hello.stall_seconds:g} s"
        elif self._watched.is_halted:
            why = "it is stopped"
        if why and why != self._why_silent:
            logger.warning("nobody speaks for %s (process %d): %s", self._hello.worker, self._watched.pid, why)
        self._why_silent = why
        return not why and not self._watched.is_dead

    async def _vouched(self, beat: Beat) -> bool:
        """Whether the coordinator heard it. One that refuses is not asked again until the process itself speaks."""
        about = {"state": beat.state, "step": beat.step, "epoch": beat.epoch}
        try:
            await self._say("Heartbeat", beat, max(1.0, beat.heartbeat_seconds), vouched=True, **about)
        except (RpcError, InvalidInput) as error:  # a proxy's, or a token's that is being replaced: that passes
            logger.info("%s was not heard: %s", self._hello.worker, error)
            return False
        except StrataError as error:
            logger.info("nobody speaks for %s any more: %s", self._hello.worker, error)
            self._beat = None
            return False
        self._renewed = self._clock()
        return True

    async def _tell_death(self, beat: Beat) -> None:
        reason = f"process {self._watched.pid} on {socket.gethostname()} ended without leaving the job"
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self._say("Deregister", beat, TELL_SECONDS, died=True, reason=reason)
        except Fenced as error:
            logger.info("that %s died is no news: %s", self._hello.worker, error)
        except (StrataError, TimeoutError) as error:
            logger.warning(
                "the coordinator was not told that %s died: %s", self._hello.worker, str(error) or "no answer"
            )

    async def _say(self, method: str, beat: Beat, within: float, **fields: object) -> None:
        self._used = self._clock()
        if self._channel is None:
            self._channel = self._connect()
        request = request_for(
            method, job_id=self._hello.job, worker_id=self._hello.worker, incarnation=beat.incarnation, **fields
        )
        try:
            await self._channel.call(remote(method), request, timeout_seconds=within)
        except RpcError as error:
            raise from_rpc(error) from None

    async def _idle(self) -> None:
        if self._channel is not None and self._clock() - self._used > IDLE_SECONDS:
            channel, self._channel = self._channel, None
            await channel.close()


async def _keep(pid: int, lines: Lines) -> None:
    select.select([lines.fd], [], [], HELLO_SECONDS)
    said = lines.read()
    if said and isinstance(said[0], Hello):  # else whoever started this was gone before it had said anything
        hello = said[0]
        connect = partial(channel_to, Config(hello.settings, {}), ChannelOptions(connect_seconds=2.0))
        await Keeper(hello, lines, Watched(pid, hello.started), connect).keep(said[1:])


def main(pid: int) -> None:
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the trainer's child ends here, so that none of those who wait for children there ever meets one
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    load()
    background.run(_keep(pid, Lines(sys.stdin.fileno())))
    logging.shutdown()
    os._exit(0)  # whoever reads the trainer's standard error to its end waits for this, and not for grpcio's tidying up


if __name__ == "__main__":
    main(int(sys.argv[1]))
