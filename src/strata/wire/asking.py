"""Questions to a coordinator that anybody may ask: not as a worker of the job, and so without a session.

A coordinator that is being restarted is waited for, but not for ever; whatever goes wrong on the way, the error says
where the coordinator was looked for.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from strata import background
from strata.config import Config
from strata.core.ids import check_id
from strata.errors import StrataError
from strata.rpc import ChannelOptions, RpcError, Status
from strata.wire.connecting import channel_to
from strata.wire.errors import from_rpc
from strata.wire.remotes import remote, request_for

T = TypeVar("T")


class Asker:
    """Calls by name about one job, from any thread or loop, and again in a forked child.

    timeout: how many seconds a call may take, all tries together.
    """

    def __init__(self, config: Config, timeout: float) -> None:
        self.job = check_id(config["job_id"], "job_id")
        self._timeout = timeout
        self._channel = channel_to(config, ChannelOptions(timeout_seconds=timeout))

    @property
    def where(self) -> str:
        """The addresses of the coordinator."""
        return self._channel.where

    async def call(self, method: str, **fields: Any) -> Any:
        """The answer; raises what the coordinator raised, or RpcError where that is nothing of Strata's."""
        if self._channel.closed:
            raise StrataError(
                f"this was closed, so it cannot ask the coordinator at {self.where} any more: make another"
            )
        request = request_for(method, job_id=self.job, **fields)
        try:
            return await self._channel.call(remote(method), request)
        except RpcError as error:
            raise self._told(error, method) from None

    def _told(self, error: RpcError, method: str) -> StrataError:
        found = from_rpc(error)
        if found is not error:
            return found
        if error.status is Status.UNAVAILABLE:  # which names the address already
            why = f"{error.message}. Is the coordinator running? See COORDINATOR_URL"
        elif error.status is Status.DEADLINE_EXCEEDED:
            why = f"the coordinator at {self.where} did not answer {method} within {self._timeout:g} s"
        else:
            why = f"the coordinator at {self.where}: {error.message}"
        return RpcError(error.status, why, details=error.details, metadata=error.metadata)

    async def close(self) -> None:
        await self._channel.close()


def ask(config: Config, timeout: float, question: Callable[[Asker], Awaitable[T]]) -> T:
    """The answer to one question, for code that is not async."""
    asker = Asker(config, timeout)

    async def answer() -> T:
        try:
            return await question(asker)
        finally:
            await asker.close()

    return background.run(answer())
