"""What a rank asks the coordinator of, for as long as it is worth while: it may come back, and so may this worker."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from strata.checkpoint.datapositions import NOWHERE, Positions, messages
from strata.checkpoint.finishing import Decision
from strata.checkpoint.manifest import UNREADABLE, PartRef
from strata.errors import CheckpointDamaged, StrataError
from strata.session import will_pass
from strata.v1 import coordinator_pb2 as pb

PAUSE_SECONDS = 0.2
CALL_SECONDS = 20.0
"""One try: the coordinator answers at once, but for those who wait."""
REASON_CHARS = 1500


class Caller(Protocol):
    """Calls the coordinator as this worker; see `strata.session`."""

    @property
    def is_silent(self) -> bool: ...

    @property
    def is_unsteady(self) -> bool: ...

    async def call(self, method: str, *, within: float = ..., **fields: Any) -> Any: ...


class Asking:
    """As one rank does. `patience`: how many seconds it waits for others. `url`: the storage that it saves to."""

    def __init__(self, caller: Caller, patience: float, url: str = "") -> None:
        self._caller, self.patience, self._url = caller, patience, url
        self.node = socket.gethostname()

    @property
    def is_silent(self) -> bool:
        """Whether the coordinator did not answer when it was last asked, or cannot be reached."""
        return self._caller.is_silent

    @property
    def is_unsteady(self) -> bool:
        """Whether it was out of reach of late: others may go another way."""
        return self._caller.is_unsteady

    async def patiently(self, method: str, *, silence: float | None = None, **fields: Any) -> Any:
        """While the coordinator does not answer, it is asked again: it may come back. So may this worker, if it was
        given up meanwhile: then it is told what became of its part."""
        patience = self.patience if silence is None else silence
        ends = now() + patience
        while True:
            try:
                return await self.call(method, most=patience, **fields)
            except StrataError as error:
                if not will_pass(error) or now() > ends:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    async def call(self, method: str, *, most: float = CALL_SECONDS, **fields: Any) -> Any:
        within = min(most, CALL_SECONDS) + fields.get("timeout_seconds", 0.0)
        return await self._caller.call(method, within=within, **fields)

    async def report_damage(self, attempt: int, why: str) -> None:
        """Nobody is to be sent back there again."""
        await self.call("ReportDamage", attempt=attempt, reason=why[:REASON_CHARS])

    async def decision(self, attempt: int) -> Decision:
        parts: list[PartRef] = []
        nodes: dict[int, str] = {}
        metrics: dict[str, str] = {}
        rank, url = 0, ""
        while True:
            answer = await self.patiently("GetCheckpoint", attempt=attempt, from_rank=rank)
            for part in answer.checkpoint.parts:
                said = _said(part)
                parts.append(said.part)
                nodes[said.part.rank], url = said.node, said.url
                metrics = dict(part.metrics) or metrics
            if not answer.HasField("next_rank"):
                _check_apart(attempt, parts)
                found = answer.checkpoint
                return Decision(found.place, found.epoch, metrics, parts, found.participants, nodes, url)
            rank = answer.next_rank

    async def acknowledge(
        self, attempt: int, part: PartRef, metrics: Mapping[str, float], data: Positions = NOWHERE
    ) -> Any:
        return await self.patiently(
            "AckCheckpoint",
            attempt=attempt,
            digest=part.digest,
            part_bytes=part.written_bytes,
            positions=messages(data),
            metrics={name: repr(float(value)) for name, value in metrics.items()},
            place=msgspec.json.encode(_Said(self.node, part, self._url)).decode(),
        )


def now() -> float:
    """The loop's clock, on which everything that waits here waits."""
    return asyncio.get_running_loop().time()


class _Said(msgspec.Struct, frozen=True):
    """What the coordinator keeps of a part for whoever commits it: the machine that it was written on, where it is, and
    in which storage."""

    node: str
    part: PartRef
    url: str = ""


def _said(part: pb.Part) -> _Said:
    try:
        found = msgspec.json.decode(part.place, type=_Said)
    except UNREADABLE as error:
        raise CheckpointDamaged(f"rank {part.rank} does not say where its part is: {error}") from error
    if found.part.digest != part.digest:
        raise CheckpointDamaged(f"rank {part.rank} says two things of its part: {found.part}")
    return found


def _check_apart(attempt: int, parts: list[PartRef]) -> None:
    """Those who save together number themselves, and where ranks were lost otherwise than the coordinator."""
    if len({part.rank for part in parts}) < len(parts):
        places = sorted(part.rank for part in parts)
        raise CheckpointDamaged(f"parts of attempt {attempt} are of different worlds: they are those of ranks {places}")
