"""A process in its job: registered, heard of, and known by its incarnation. Everything runs on Strata's private loop.

    register ──▶ heartbeats, each of which may bring commands ──▶ leave
        ▲                     │
        └── its lease ran out, or the coordinator does not know it: it comes back as a new incarnation

The law: a process that was superseded never comes back; whatever it asks is refused with the reason. While the
coordinator cannot be reached the session goes on trying, and says so once.

A heartbeat is a call of its own. Beside them a stream is open, on which nothing is said: commands, and that the world
has changed, come on it at once.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from copy import copy
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from strata import background
from strata.core.events import MAX_RESOURCES, Position
from strata.errors import Expired, Fenced, InvalidInput, NotRegistered, StrataError, Superseded
from strata.logs import get_logger
from strata.rpc import Channel, RpcError, Status
from strata.rpc.client import is_fork_safe
from strata.session.appointments import Appointments, Promise
from strata.session.reaching import tell_of_waiting, unknown_names
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import from_rpc
from strata.wire.remotes import remote, request_for, request_type

if TYPE_CHECKING:
    from strata.session.pulse import Pulse

logger = get_logger("strata.session")

CALL_SECONDS = 30.0
TRY_SECONDS = 10.0
"""The longest that one try to register or to be heard of may take."""
BEAT_AT = 0.9
"""Of the heartbeat interval: on the way, it is not to become late."""
SILENT_SECONDS = 0.5
"""A coordinator that cannot be reached for so long is done without, where there is another way."""
STEADY_SECONDS = 30.0
PAUSE_SECONDS = 0.1, 2.0
"""Between tries to come in: at first, and at most."""

CarryOut = Callable[[pb.Command], Coroutine[Any, Any, None]]
WhereIs = Callable[[], Position | None]
"""None: it has not begun to read."""


class Who(NamedTuple):
    """Whom this process is in its job. A rank or a size that is None is the coordinator's to say."""

    job: str
    worker: str
    rank: int | None = None
    world_size: int | None = None


def is_silence(error: BaseException) -> bool:
    """Whether no answer came: what was asked for may have happened or not."""
    return isinstance(error, RpcError) and error.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)


def will_pass(error: BaseException) -> bool:
    """Whether it may be well if it is asked again: the coordinator comes back, or this worker, if it was given up."""
    return is_silence(error) or isinstance(error, Expired | NotRegistered)


class Place(NamedTuple):
    """This process among those who save together, from 0 on; and a name that is the same for all of them, and for no
    other world of the job."""

    rank: int
    size: int
    run: str | None = None


class Parting(NamedTuple):
    """Why this process goes, where that is known. `died`: it failed, and was not to go."""

    reason: str = ""
    died: bool = False


class Report(NamedTuple):
    """What this process says of itself. A step or an epoch that is None it has not come to."""

    state: int = pb.WORKER_STATE_UNSPECIFIED
    step: int | None = None
    epoch: int | None = None
    resources: Mapping[str, float] = {}


class Session:
    """`start` begins it, from any thread; `call` waits until it is registered; `close` leaves the job."""

    def __init__(self, channel: Channel, who: Who, **about: Any) -> None:
        self._channel, self.who, self._about = channel, who, about
        self._known = about
        """Of `_about`, as the coordinator was told it last."""
        self.registered: pb.RegisterResponse | None = None
        self._nonce = secrets.token_hex(8)
        self._previous: int | None = None
        self._ended: StrataError | None = None
        self._came_in = asyncio.Event()
        self._due = asyncio.Event()
        """The next heartbeat is, before its time."""
        self._is_silent = False
        self.generation = 0
        """Of the job's world, as the coordinator said it last."""
        self.place: Place | None = None
        """Unless rank and size are what was said: where this process is since the last recovery."""
        self.says = Report()
        """Told with each heartbeat."""
        self.measures: Callable[[], Mapping[str, float]] = dict
        """What this process takes of its machine: told along, where what it says leaves room."""
        self.parting = Parting()
        """Told when it leaves, unless whoever has it leave says another reason."""
        self.appointments = Appointments(self.speak)
        self._reading: dict[str, WhereIs] = {}
        self._refusal = ""
        """Why it is not registered, if the coordinator said so."""
        self._carry_out: dict[int, list[CarryOut]] = {}
        self._under_way: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._living: Any = None
        self._pulse: Pulse | None = None

    def use(self, pulse: "Pulse") -> None:
        """From now on a helper speaks for this process while it cannot. One is enough, whoever asks for it."""
        if self._pulse is None:
            pulse.start()
            self._pulse = pulse
            self.speak()  # it may have been registered for long, which the helper is to know

    def start(self) -> None:
        """On the private loop."""
        self._living = asyncio.run_coroutine_threadsafe(self._live(), background.loop())

    async def live(self) -> None:
        """The same on the loop that this is run on, for as long as it lasts."""
        self._living = asyncio.current_task()
        await self._live()

    def on(self, kind: int, carry_out: CarryOut) -> None:
        """What to do at a command of this kind. It may come again before it is done: then nothing is begun twice. Each
        who wants it hears it, and must see for itself whether it is meant."""
        self._carry_out.setdefault(kind, []).append(carry_out)

    def off(self, kind: int, carry_out: CarryOut) -> None:
        self._carry_out[kind].remove(carry_out)

    def speak(self) -> None:
        """Be heard of at once. From any thread."""
        background.loop().call_soon_threadsafe(self._due.set)

    @property
    def incarnation(self) -> int:
        """As which this process is registered; 0 while it is not."""
        return 0 if self.registered is None else self.registered.incarnation

    @property
    def is_over(self) -> bool:
        """Whether it has left, or was refused for good: it never comes in again."""
        return self._ended is not None

    @property
    def is_silent(self) -> bool:
        """Whether the coordinator did not answer when it was last asked, or cannot be reached."""
        return self._is_silent or self._channel.silence.seconds >= SILENT_SECONDS

    @property
    def is_unsteady(self) -> bool:
        """Whether it was out of reach of late: others may not have found it again yet."""
        return self.is_silent or self._channel.silence.seconds_ago < STEADY_SECONDS

    def reads(self, dataset: str, where: "WhereIs | None") -> None:
        """This process reads a dataset as part of the job, and `where` says how far it is; None: not any more."""
        if where is None:
            self._reading.pop(dataset, None)
            return
        if dataset in self._reading:
            raise InvalidInput(
                f"this process reads dataset {dataset!r} already: close the loader that does before there is another"
            )
        self._reading[dataset] = where

    def positions(self) -> dict[str, Position]:
        """Where this process is in each dataset that it reads, at the moment. From any thread."""
        found = {dataset: where() for dataset, where in list(self._reading.items())}
        return {dataset: position for dataset, position in found.items() if position is not None}

    async def call(self, method: str, *, within: float = CALL_SECONDS, **fields: Any) -> Any:
        """As this worker; raises what the coordinator raised, or RpcError if no answer came within so many seconds."""
        try:
            async with asyncio.timeout(within):
                registered = await self._present()
                return await self.call_as(method, registered, within, fields)
        except TimeoutError:
            told = f"the coordinator at {self._channel.where} did not answer {method} within {within:g} s"
            if self.registered is None and self._refusal:
                told = f"worker {self.who.worker!r} was not let in within {within:g} s: {self._refusal}"
            raise RpcError(Status.UNAVAILABLE, told) from None

    async def call_as(self, method: str, registered: pb.RegisterResponse, within: float, fields: dict[str, Any]) -> Any:
        """As the incarnation that it was registered as, which may be over."""
        known = request_type(method).DESCRIPTOR.fields_by_name
        sender = {"worker_id": self.who.worker, "incarnation": registered.incarnation}
        own = {name: value for name, value in sender.items() if name in known}
        try:
            request = request_for(method, job_id=self.who.job, **own, **fields)
            return await self._channel.call(remote(method), request, timeout_seconds=within)
        except RpcError as error:
            found = from_rpc(error)
            if isinstance(found, Superseded) and self._ended is None and self.registered is not registered:
                raise Expired(f"worker {self.who.worker!r} was given up, and has come back: {found}") from None
            if isinstance(found, Fenced):
                self._due.set()
            raise found from None

    async def present(self, within: float) -> pb.RegisterResponse:
        """Its place, as soon as it has one; raises why it has none within so many seconds. What keeps it is logged
        meanwhile."""
        who, where = f"worker {self.who.worker!r}", self._channel.where
        coming = asyncio.ensure_future(self._present())
        telling = asyncio.ensure_future(tell_of_waiting(who, where, lambda: self._refusal, within))
        try:
            done, _ = await asyncio.wait({coming, telling}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if coming in done:
                return coming.result()
            if telling in done:
                telling.result()
        finally:
            coming.cancel()
            telling.cancel()
        why = self._refusal or await unknown_names(where) or f"the coordinator at {where} does not answer"
        raise RpcError(Status.UNAVAILABLE, f"{who} was not let in within {within:g} s: {why}")

    async def describe(self, **about: Any) -> None:
        """Of this process, beside what was told before. Whoever began the session may have known nothing of it. A
        coordinator that does not answer is told when it is back: that is no reason to have this process wait."""
        former, self._about = self._about, {**self._about, **about}
        await self._present()
        try:
            await self._tell_about(CALL_SECONDS)
        except StrataError as error:
            if not will_pass(error):
                self._about = former
                raise
            logger.warning("what is said of worker %s is told later: %s", self.who.worker, error)

    async def _tell_about(self, within: float) -> None:
        about = self._about
        if about == self._known:
            return
        try:
            await self._channel.call(remote("Register"), self._registration(), timeout_seconds=within)
        except RpcError as error:
            raise from_rpc(error) from None
        self._known = about

    async def be_heard(self) -> None:
        """Now. Raises what the coordinator says against it, or that it says nothing."""
        registered = await self.present(CALL_SECONDS)
        self._heed(await self.call_as("Heartbeat", registered, TRY_SECONDS, self._told(self.appointments.promised)))

    async def _present(self) -> pb.RegisterResponse:
        while self.registered is None:
            if self._ended is not None:
                raise copy(self._ended)
            await self._came_in.wait()
        return self.registered

    async def close(self, reason: str = "it is done", *, died: bool = False, within: float = TRY_SECONDS) -> None:
        """Nobody waits for this worker any more. That it cannot be told changes nothing: its lease runs out. `died`: it
        is shown as one that failed; if that cannot be told, its helper tells when the process is gone."""
        if self._living is None:
            return
        self._living.cancel()
        await self._leave_off(within)
        if self.registered is not None:
            try:
                within = min(within, PAUSE_SECONDS[1]) if self.is_silent else within
                await self.call("Deregister", within=within, reason=reason, died=died)
            except StrataError as error:
                logger.info("the coordinator was not told that %s leaves: %s", self.who.worker, error)
                if died:
                    return
        self._end(Expired(f"worker {self.who.worker!r} has left: {reason}"))
        if self._pulse is not None:
            self._pulse.close()
        await self._channel.close()

    async def _leave_off(self, within: float) -> None:
        """What was commanded is others' to do now. It ends before the channel that it speaks on does."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within)

    # -- its life ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self._come_in()
                await self._stay()
            except (Expired, NotRegistered) as error:
                logger.warning("worker %s registers again: %s", self.who.worker, error)
                self._come_back_as_another()
            except StrataError as error:
                logger.error("worker %s cannot be part of job %s: %s", self.who.worker, self.who.job, error)
                self._end(error)
                return
            except Exception:
                logger.exception("worker %s starts again after a defect", self.who.worker)
                self._come_back_as_another()
                await asyncio.sleep(PAUSE_SECONDS[1])

    def _end(self, error: StrataError) -> None:
        self.registered, self._ended = None, error
        self._came_in.set()
        if self._pulse is not None:
            self._pulse.left()

    def _come_back_as_another(self) -> None:
        self._nonce = secrets.token_hex(8)
        if self.registered is not None:
            self._previous = self.registered.incarnation
        self.registered = None
        self._came_in.clear()
        if self._pulse is not None:
            self._pulse.left()

    async def _come_in(self) -> None:
        pause, told = PAUSE_SECONDS[0], ""
        while True:
            request, about = self._registration(), self._about
            try:
                answer = await self._channel.call(remote("Register"), request, timeout_seconds=TRY_SECONDS)
            except RpcError as error:
                found = from_rpc(error)
                if self._is_final(found):
                    raise found from None
                self._refusal = "" if is_silence(found) else str(found)
                self._is_silent = is_silence(found)
                if str(found) != told:
                    told = str(found)
                    logger.warning("worker %s is not registered yet: %s", self.who.worker, told)
                await asyncio.sleep(pause)
                pause = min(PAUSE_SECONDS[1], pause * 2)
                continue
            self.registered, self._refusal, self._is_silent = answer, "", False
            self._known = about
            self.generation = answer.generation
            self._due.clear()
            self._came_in.set()
            if self._pulse is not None:
                self._pulse.beat(answer, *self.says[:3])
            return

    def _registration(self) -> Any:
        return request_for(
            "Register",
            job_id=self.who.job,
            worker_id=self.who.worker,
            nonce=self._nonce,
            rank=self.who.rank,
            world_size=self.who.world_size,
            previous_incarnation=self._previous,
            **self._about,
        )

    def _is_final(self, error: StrataError) -> bool:
        """A token may be wrong while it is being replaced; one that was never right is not waited for."""
        if isinstance(error, RpcError):
            return error.status in (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED) and self._previous is None
        return not error.retry

    async def _stay(self) -> None:
        """Until the lease is lost, or the process superseded."""
        assert self.registered is not None
        registered = self.registered
        listening = asyncio.ensure_future(self._listen(registered))
        try:
            while True:
                with suppress(TimeoutError):
                    seconds = BEAT_AT * registered.heartbeat_seconds
                    async with asyncio.timeout(min(seconds, PAUSE_SECONDS[1]) if self._is_silent else seconds):
                        await self._due.wait()
                self._due.clear()
                await self._beat(registered)
        finally:
            listening.cancel()

    async def _listen(self, registered: pb.RegisterResponse) -> None:
        """That it cannot is no news: heartbeats tell whether the coordinator is there, and bring the same, later."""
        if not is_fork_safe():
            return
        pause, who = PAUSE_SECONDS[0], self.who
        me: dict[str, Any] = {"job_id": who.job, "worker_id": who.worker, "incarnation": registered.incarnation}
        while True:
            try:
                async with self._channel.stream(remote("HeartbeatStream")) as stream:
                    await stream.send(pb.HeartbeatRequest(**me, **self._told(self.appointments.promised)))
                    async for answer in stream:
                        pause = PAUSE_SECONDS[0]
                        self._heed(answer)
            except RpcError as error:
                if error.status is Status.UNIMPLEMENTED:
                    return
                logger.debug("nothing is heard between heartbeats: %s", error)
            await asyncio.sleep(pause)
            pause = min(PAUSE_SECONDS[1], pause * 2)

    async def _beat(self, registered: pb.RegisterResponse) -> None:
        promised = self.appointments.promised
        try:
            answer = await self.call_as("Heartbeat", registered, TRY_SECONDS, self._told(promised))
        except (RpcError, InvalidInput) as error:  # a proxy's, or a token's that is being replaced: that passes
            if not self._is_silent:
                logger.warning("the coordinator cannot be reached: %s", error)
            self._is_silent = True
            if self._pulse is not None:
                self._pulse.tick()
            return
        if self._pulse is not None:
            self._pulse.beat(registered, *self.says[:3])
        if self._is_silent:
            logger.warning("the coordinator is back")
        self._is_silent = False
        self.appointments.answered(promised, answer.commands)
        self._heed(answer)
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Tells what could not be told of this process while the coordinator was away."""
        try:
            await self._tell_about(TRY_SECONDS)
        except StrataError as error:
            if not will_pass(error):  # kept, it would keep this process out when it has to register again
                logger.error("what is said of worker %s was refused: %s", self.who.worker, error)
                self._about = self._known

    def _told(self, promised: Promise) -> dict[str, Any]:
        said = self.says
        measured = islice(self.measures().items(), MAX_RESOURCES - len(said.resources))
        resources = {**dict(measured), **said.resources}
        # A loss that is no number any more is shown to nobody, and is no reason to lose the worker.
        told = said._replace(resources={name: value for name, value in resources.items() if isfinite(value)})
        return {**told._asdict(), "promised_request": promised.request, "promised_step": promised.step}

    def _heed(self, answer: pb.HeartbeatResponse) -> None:
        self.generation = max(self.generation, answer.generation)
        if self.appointments.heard(answer.commands):
            self._due.set()
        for command in answer.commands:
            self._begin(command)

    def _begin(self, command: pb.Command) -> None:
        key, wanted = (command.kind, command.attempt), self._carry_out.get(command.kind)
        if not wanted or key in self._under_way:
            return

        async def all_of_them() -> None:
            for carry_out in list(wanted):
                await _tried(carry_out, command)

        task = self._under_way[key] = asyncio.ensure_future(all_of_them())
        task.add_done_callback(lambda _: self._under_way.pop(key))


async def _tried(carry_out: CarryOut, command: pb.Command) -> None:
    """It may be meant for another who hears it after this one: that one is not to miss it."""
    try:
        await carry_out(command)
    except Exception as error:  # noqa: BLE001  of whoever carries it out: it is logged, and the command comes again
        kind = pb.Command.Kind.Name(command.kind)
        logger.warning("%s of attempt %d failed: %s", kind, command.attempt, error)
