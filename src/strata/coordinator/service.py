"""The gRPC service: every method of `proto/strata/v1/coordinator.proto`, on the hub.

A method that changes something is a row in a table: how its request becomes an event, and how the answer becomes a
response. Those that only ask, and those that wait or stream, are written out.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from strata.coordinator import translate
from strata.coordinator.awaiting import Awaiting
from strata.coordinator.hub import Hub
from strata.coordinator.kept import KeptAnswers
from strata.coordinator.streams import Pushes, watch_events
from strata.coordinator.worlds import Worlds
from strata.core.effects import Alive, BarrierVerdict
from strata.core.events import BarrierArrived
from strata.core.ids import MAX_COUNT, check_int
from strata.core.lineages import head
from strata.core.shares import shards_in_order
from strata.errors import InvalidInput, NotFound, Refused, StrataError
from strata.rpc import Call, Later, Line, Method, RpcError, Talk, protobuf_service, talking
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import message_of, reason_of, to_rpc

SMALL_BYTES = 4096
"""No text in a request of this size can be longer than the core takes, and protobuf has seen to the types."""
SHARES_KEPT_BYTES = 32 << 20
SHARES_MOST = 500_000
"""Shards in one answer: a few megabytes."""
BATCH_MOST = 1024
PAGE_MOST = 1000
PAGE = 100
PARTS_AT_ONCE = 1000
RANGES_AT_ONCE = 50_000
"""Of what is consumed, in one answer: less than a megabyte."""

_DONE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "deregister": (translate.deregister, translate.always(pb.DeregisterResponse())),
    "unregister_dataset": (translate.unregister_dataset, translate.always(pb.UnregisterDatasetResponse())),
    "acknowledge_revocation": (
        translate.acknowledge_revocation,
        translate.always(pb.AcknowledgeRevocationResponse()),
    ),
    "report_progress": (translate.report_progress, translate.always(pb.ReportProgressResponse())),
    "fail_checkpoint": (translate.fail_checkpoint, translate.always(pb.FailCheckpointResponse())),
    "commit_checkpoint": (translate.commit_checkpoint, translate.always(pb.CommitCheckpointResponse())),
    "report_damage": (translate.report_damage, translate.always(pb.ReportDamageResponse())),
    "pin_checkpoint": (translate.pin_checkpoint, translate.always(pb.PinCheckpointResponse())),
    "report_removed": (translate.report_removed, translate.always(pb.ReportRemovedResponse())),
    "configure_job": (translate.configure_job, translate.always(pb.ConfigureJobResponse())),
    "drain_worker": (translate.drain_worker, translate.always(pb.DrainWorkerResponse())),
    "stop_job": (translate.stop_job, translate.always(pb.StopJobResponse())),
}
_ANSWERED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "register": (translate.register, translate.registered),
    "register_dataset": (translate.register_dataset, translate.dataset_info),
    "get_assignments": (translate.get_assignments, translate.assignments),
    "report_batches": (translate.report_batches, translate.ledger_now),
    "advance_epoch": (translate.advance_epoch, translate.epoch_now),
    "begin_checkpoint": (translate.begin_checkpoint, translate.begun),
    "ack_checkpoint": (translate.ack_checkpoint, translate.acknowledged),
    "recover": (translate.recover, translate.recovery_point),
    "roll_back": (translate.roll_back, translate.lineage_now),
    "request_checkpoint": (translate.request_checkpoint, translate.save_asked),
}


def coordinator_service(hub: Hub, still_welcome: Callable[[Call], bool] = lambda call: True) -> list[Method]:
    """The methods, for either server. `still_welcome` says of a long call whether it would be let in again."""
    descriptor = pb.DESCRIPTOR.services_by_name["Coordinator"]
    return protobuf_service(descriptor, _Service(hub, still_welcome))


class _Service:
    def __init__(self, hub: Hub, still_welcome: Callable[[Call], bool]) -> None:
        self._hub = hub
        self._still_welcome = still_welcome
        self._pushes = Pushes(hub, self._beat, still_welcome)
        self._awaiting = Awaiting(hub, still_welcome)
        self._alive: dict[int, bytes] = {}
        self._worlds = Worlds(hub)
        self._shares = KeptAnswers(SHARES_KEPT_BYTES)
        for name, (to_event, to_response) in (_ANSWERED | _DONE).items():
            setattr(self, name, self._row(to_event, to_response))

    def _row(self, to_event: Callable[[Any], Any], to_response: Callable[[Any], Any]) -> Callable[[Any, Call], Any]:
        def question(request: Any) -> Any:
            return to_response(self._hub.ask(to_event(request), trusted=request.ByteSize() <= SMALL_BYTES))

        return lambda request, call: self._guarded(question, request)

    def _guarded(self, question: Callable[[Any], Any], request: Any) -> Any:
        """The outcome, good or bad, once all that it may rest on is durable; at once for one that is a Later."""
        try:
            response = question(request)
        except RpcError:
            raise
        except StrataError as error:
            return self._hub.refuse(to_rpc(error))
        return response if type(response) is Later else self._hub.answer(response)

    # -- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> Any:
        return self._guarded(self._beat, request)

    def _beat(self, request: pb.HeartbeatRequest, job: str = "") -> bytes:
        """`job` is that of the batch it came in, where it came in one."""
        event = translate.heartbeat(request, job)
        generation = self._hub.renew_lease(event)
        if generation is None:
            answer = self._hub.ask(event, trusted=request.ByteSize() <= SMALL_BYTES)
            assert type(answer) is Alive
            return translate.alive(answer).SerializeToString()
        usual = self._alive.get(generation)
        if usual is None:
            if len(self._alive) > 64:
                self._alive.clear()
            usual = self._alive[generation] = translate.alive(Alive(generation)).SerializeToString()
        return usual

    def heartbeat_batch(self, request: pb.HeartbeatBatchRequest, call: Call) -> Any:
        return self._guarded(self._beats, request)

    def _beats(self, request: pb.HeartbeatBatchRequest) -> pb.HeartbeatBatchResponse:
        if len(request.heartbeats) > BATCH_MOST:
            raise InvalidInput(f"a batch has {len(request.heartbeats)} heartbeats; at most {BATCH_MOST} are taken")
        response = pb.HeartbeatBatchResponse()
        for beat in request.heartbeats:
            outcome = response.outcomes.add(worker_id=beat.worker_id)
            try:
                if beat.job_id not in ("", request.job_id):
                    raise InvalidInput("a heartbeat names another job than its batch does: one batch, one job")
                outcome.alive.MergeFromString(self._beat(beat, request.job_id))
                outcome.alive.SetInParent()
            except RpcError:
                raise
            except StrataError as error:
                outcome.refused.reason, outcome.refused.message = reason_of(error), message_of(error)
        return response

    @talking
    def heartbeat_stream(self, line: Line, call: Call) -> Talk:
        return self._pushes.open(line, call)

    # -- barriers ----------------------------------------------------------------------------------------------------

    def wait_barrier(self, request: pb.WaitBarrierRequest, call: Call) -> Any:
        event = translate.wait_barrier(request)
        return self._hub.join_barrier(event) or self._guarded(lambda told: self._arrive(told, event), request)

    def _arrive(self, request: pb.WaitBarrierRequest, event: BarrierArrived) -> bytes | Later:
        answer = self._hub.ask(event, trusted=request.ByteSize() <= SMALL_BYTES)
        if not isinstance(answer, BarrierVerdict):
            return self._hub.wait_at_barrier(event.job, event.worker, event.arrival)
        told = translate.verdict(answer)
        return told if isinstance(told, bytes) else self._hub.refuse(told)

    # -- questions ---------------------------------------------------------------------------------------------------

    def get_world(self, request: pb.GetWorldRequest, call: Call) -> Any:
        return self._guarded(self._worlds.page, request)

    def get_shards(self, request: pb.GetShardsRequest, call: Call) -> Any:
        return self._guarded(self._shards, request)

    def _shards(self, request: pb.GetShardsRequest) -> bytes:
        machine = self._hub.machine
        job = machine.state.job(request.job_id)
        dataset = job.dataset(request.dataset_id)
        epoch = request.epoch if request.HasField("epoch") else dataset.epoch
        generation = job.world.generation
        key = (request.job_id, request.dataset_id, dataset.version, generation, epoch, request.rank)
        found = self._shares.get(key)
        if found is None:
            check_int(epoch, "epoch")
            each = -(-dataset.shard_count // max(1, len(job.world.view)))
            if each > SHARES_MOST:
                raise Refused(
                    f"a rank of dataset {dataset.dataset!r} has {each:,} shards; an answer holds {SHARES_MOST:,}: "
                    "register it with a larger shard_size"
                )
            shards = shards_in_order(machine.volatile, job, dataset, request.rank, epoch)
            response = pb.GetShardsResponse(
                version=dataset.version,
                epoch=epoch,
                generation=generation,
                shard_ids=shards,
                total_samples=dataset.total_samples,
                shard_size=dataset.shard_size,
                path=dataset.path,
                format=dataset.format,
                fingerprint=dataset.fingerprint,
                columns=dataset.columns,
            )
            found = response.SerializeToString()
            self._shares.keep(key, found)
        return found

    def list_datasets(self, request: pb.ListDatasetsRequest, call: Call) -> Any:
        return self._guarded(self._list_datasets, request)

    def _list_datasets(self, request: pb.ListDatasetsRequest) -> pb.ListDatasetsResponse:
        job = self._hub.machine.state.job(request.job_id)
        return pb.ListDatasetsResponse(
            datasets=[translate.dataset(job.datasets[name]) for name in sorted(job.datasets)]
        )

    def get_ledger(self, request: pb.GetLedgerRequest, call: Call) -> Any:
        return self._guarded(self._get_ledger, request)

    def _get_ledger(self, request: pb.GetLedgerRequest) -> pb.GetLedgerResponse:
        check_int(request.from_place, "from_place", most=MAX_COUNT)
        machine = self._hub.machine
        job = machine.state.job(request.job_id)
        dataset = job.dataset(request.dataset_id)
        owned = machine.volatile.ownerships.of(job.job, dataset, job.world.view)
        return translate.ledger(job, dataset, request.from_place, RANGES_AT_ONCE, owned)

    def get_checkpoint(self, request: pb.GetCheckpointRequest, call: Call) -> Any:
        return self._guarded(self._get_checkpoint, request)

    def _get_checkpoint(self, request: pb.GetCheckpointRequest) -> pb.GetCheckpointResponse:
        attempt = self._hub.machine.state.job(request.job_id).attempts.get(request.attempt)
        if attempt is None:
            raise NotFound(f"job {request.job_id!r} has no attempt {request.attempt}")
        ranks = [rank for rank in sorted(attempt.parts) if rank >= request.from_rank]
        page, rest = ranks[:PARTS_AT_ONCE], ranks[PARTS_AT_ONCE:]
        made = translate.checkpoint(attempt)
        translate.add_parts(made, attempt, page)
        return pb.GetCheckpointResponse(checkpoint=made, next_rank=rest[0] if rest else None)

    async def await_checkpoint(self, request: pb.AwaitCheckpointRequest, call: Call) -> Any:
        return await self._awaiting.serve(request, call)

    def latest_checkpoint(self, request: pb.LatestCheckpointRequest, call: Call) -> Any:
        return self._guarded(self._latest_checkpoint, request)

    def _latest_checkpoint(self, request: pb.LatestCheckpointRequest) -> pb.LatestCheckpointResponse:
        latest = head(self._hub.machine.state.job(request.job_id))
        return pb.LatestCheckpointResponse(checkpoint=None if latest is None else translate.checkpoint(latest))

    def list_checkpoints(self, request: pb.ListCheckpointsRequest, call: Call) -> Any:
        return self._guarded(self._list_checkpoints, request)

    def _list_checkpoints(self, request: pb.ListCheckpointsRequest) -> pb.ListCheckpointsResponse:
        size = request.page_size or PAGE
        check_int(size, "page_size", least=1, most=PAGE_MOST)
        attempts = self._hub.machine.state.job(request.job_id).attempts
        below = _page_token(request.page_token)
        numbers = sorted((number for number in attempts if below is None or number < below), reverse=True)
        page, rest = numbers[:size], numbers[size:]
        return pb.ListCheckpointsResponse(
            checkpoints=[translate.checkpoint(attempts[number]) for number in page],
            next_page_token=str(page[-1]) if rest else "",
        )

    async def watch_events(self, request: pb.WatchEventsRequest, call: Call) -> AsyncIterator[pb.WatchEventsResponse]:
        async for response in watch_events(self._hub, request, call, self._still_welcome):
            yield response


def _page_token(token: str) -> int | None:
    if not token:
        return None
    if not token.isdecimal() or len(token) > 18:
        raise InvalidInput(f"{token[:40]!r} is no page_token: give the one from the answer before")
    return int(token)
