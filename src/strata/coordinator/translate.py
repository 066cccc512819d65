"""Between the wire and the core: requests become events, answers become responses. Nothing is decided here."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from strata.core import events
from strata.core.effects import (
    Acknowledged,
    Alive,
    Assignments,
    BarrierVerdict,
    Begun,
    BreakBarrier,
    DatasetInfo,
    DismissArrival,
    EpochNow,
    Errand,
    FinishFirst,
    LedgerNow,
    LineageNow,
    RecoveryPoint,
    Registered,
    ReleaseBarrier,
    SaveAsked,
    Skipped,
)
from strata.core.ownership import RankOwnership
from strata.core.settings import JobSettings, Retention
from strata.core.state import Attempt, Dataset, Job
from strata.errors import BarrierFailed, Expired, InvalidInput, Refused, StrataError, Superseded
from strata.rpc import RpcError
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import to_rpc

STATES = {
    number: name.removeprefix("WORKER_STATE_").lower() if number else "" for name, number in pb.WorkerState.items()
}
ATTEMPT_STATUS = {name.removeprefix("ATTEMPT_STATUS_").lower(): name for name, _ in pb.AttemptStatus.items()}
_SAID_BY_COORDINATOR = {"failed", "left"}
_COMMANDS = {
    "save": pb.Command.KIND_SAVE_PART,
    "put_manifest": pb.Command.KIND_PUT_MANIFEST,
    "remove_manifest": pb.Command.KIND_REMOVE_MANIFEST,
    "remove_files": pb.Command.KIND_REMOVE_FILES,
    "propose_save": pb.Command.KIND_PROPOSE_SAVE,
    "save_at": pb.Command.KIND_SAVE_AT,
    "drain": pb.Command.KIND_DRAIN,
    "stop": pb.Command.KIND_STOP,
}


def _maybe(request: Any, field: str) -> Any:
    """The value of an optional field; None where it is absent."""
    return getattr(request, field) if request.HasField(field) else None


# -- requests --------------------------------------------------------------------------------------------------------


def register(request: pb.RegisterRequest) -> events.RegisterRequested:
    return events.RegisterRequested(
        request.job_id,
        request.worker_id,
        request.nonce,
        _maybe(request, "rank"),
        _maybe(request, "world_size"),
        _maybe(request, "previous_incarnation"),
        request.ip,
        request.port,
        request.gpu_count,
        request.memory_bytes,
        dict(request.metadata),
    )


def deregister(request: pb.DeregisterRequest) -> events.DeregisterRequested:
    return events.DeregisterRequested(
        request.job_id, request.worker_id, request.incarnation, request.reason, request.died
    )


def heartbeat(request: pb.HeartbeatRequest, job: str = "") -> events.HeartbeatReceived:
    state = STATES.get(request.state)
    if state is None or state in _SAID_BY_COORDINATOR:
        known = ", ".join(f"{name} ({number})" for number, name in STATES.items() if name not in _SAID_BY_COORDINATOR)
        raise InvalidInput(
            f"a heartbeat cannot say state {request.state}; it may say {known.replace(' (0)', 'none (0)', 1)}"
        )
    return events.HeartbeatReceived(
        request.job_id or job,
        request.worker_id,
        request.incarnation,
        state,
        # Whether it is there has to be asked for nothing but zero.
        request.step or (0 if request.HasField("step") else -1),
        request.epoch or (0 if request.HasField("epoch") else -1),
        request.promised_request,
        request.promised_step,
        dict(request.resources) if request.resources else {},
        request.vouched,
    )


def wait_barrier(request: pb.WaitBarrierRequest) -> events.BarrierArrived:
    return events.BarrierArrived(
        request.job_id,
        request.worker_id,
        request.incarnation,
        request.barrier_id,
        request.arrival,
        request.settled,
        request.expected_participants,
        request.timeout_seconds if request.HasField("timeout_seconds") else None,
        request.generation if request.HasField("generation") else None,
    )


def register_dataset(request: pb.RegisterDatasetRequest) -> events.DatasetRegisterRequested:
    return events.DatasetRegisterRequested(
        request.job_id,
        request.dataset_id,
        request.total_samples,
        request.shard_size,
        request.shuffle,
        request.seed,
        request.path,
        request.format,
        request.strategy or "slots-v1",
        request.order or "elastic",
        _maybe(request, "replaces_version"),
        request.fingerprint,
        request.columns,
    )


def unregister_dataset(request: pb.UnregisterDatasetRequest) -> events.DatasetRemoveRequested:
    return events.DatasetRemoveRequested(request.job_id, request.dataset_id, _maybe(request, "version"))


def get_assignments(request: pb.GetAssignmentsRequest) -> events.AssignmentsRequested:
    return events.AssignmentsRequested(
        request.job_id, request.worker_id, request.incarnation, request.dataset_id, request.level
    )


def acknowledge_revocation(request: pb.AcknowledgeRevocationRequest) -> events.RevocationAcknowledged:
    return events.RevocationAcknowledged(
        request.job_id,
        request.worker_id,
        request.incarnation,
        request.dataset_id,
        request.version,
        request.epoch,
        request.point,
        request.generation,
        list(request.shards),
        dict(request.cursors),
    )


def report_progress(request: pb.ReportProgressRequest) -> events.ProgressReported:
    return events.ProgressReported(
        request.job_id,
        request.worker_id,
        request.incarnation,
        request.dataset_id,
        request.version,
        request.epoch,
        request.point,
        dict(request.cursors),
        _maybe(request, "levelled"),
    )


def report_batches(request: pb.ReportBatchesRequest) -> events.BatchesReported:
    return events.BatchesReported(
        request.job_id,
        request.worker_id,
        request.incarnation,
        request.dataset_id,
        request.version,
        request.epoch,
        request.generation,
        request.point,
        request.through,
        request.reading,
        request.over,
        request.joins,
        dict(request.left_out),
    )


def advance_epoch(request: pb.AdvanceEpochRequest) -> events.EpochAdvanceRequested:
    return events.EpochAdvanceRequested(
        request.job_id, request.dataset_id, request.from_epoch, request.asked_by, _maybe(request, "point")
    )


def begin_checkpoint(request: pb.BeginCheckpointRequest) -> events.CheckpointBeginRequested:
    return events.CheckpointBeginRequested(
        request.job_id,
        request.worker_id,
        request.incarnation,
        request.step,
        request.epoch,
        _maybe(request, "generation"),
        list(request.references),
        request.place,
        request.skip,
    )


def ack_checkpoint(request: pb.CheckpointAck) -> events.CheckpointAck:
    return events.CheckpointAck(
        request.job_id,
        request.worker_id,
        request.incarnation,
        request.attempt,
        request.digest,
        request.part_bytes,
        _positions(request.positions),
        dict(request.metrics),
        request.place,
    )


def fail_checkpoint(request: pb.FailCheckpointRequest) -> events.PartFailed:
    return events.PartFailed(request.job_id, request.worker_id, request.incarnation, request.attempt, request.reason)


def commit_checkpoint(request: pb.CommitCheckpointRequest) -> events.ManifestPut:
    return events.ManifestPut(request.job_id, request.worker_id, request.incarnation, request.attempt)


def report_damage(request: pb.ReportDamageRequest) -> events.DamageReported:
    return events.DamageReported(
        request.job_id, request.worker_id, request.incarnation, request.attempt, request.reason
    )


def pin_checkpoint(request: pb.PinCheckpointRequest) -> events.PinRequested:
    return events.PinRequested(request.job_id, request.attempt, request.name, not request.unpin)


def report_removed(
    request: pb.ReportRemovedRequest,
) -> events.ManifestRemoved | events.FilesRemoved | events.CheckpointRemoved:
    who = (request.job_id, request.worker_id, request.incarnation, request.attempt)
    if request.what == pb.ReportRemovedRequest.WHAT_MANIFEST:
        return events.ManifestRemoved(*who)
    if request.what == pb.ReportRemovedRequest.WHAT_FILES:
        return events.FilesRemoved(*who)
    if request.what == pb.ReportRemovedRequest.WHAT_ALL:
        return events.CheckpointRemoved(*who)
    raise InvalidInput("say what was removed: the manifest, the files, or both")


def recover(request: pb.RecoverRequest) -> events.RecoverRequested:
    return events.RecoverRequested(
        request.job_id,
        request.worker_id,
        request.incarnation,
        _maybe(request, "generation"),
        _found(request.found) if request.HasField("found") else None,
        request.insist,
        _maybe(request, "since"),
        [_found(each) for each in request.earlier],
        _maybe(request, "known_attempt"),
    )


def _found(found: pb.Found) -> events.Found:
    return events.Found(found.step, found.epoch, found.place, _positions(found.positions))


def _positions(told: Mapping[str, pb.DataPosition]) -> dict[str, events.Position]:
    return {
        name: events.Position(each.version, each.epoch, list(each.consumed.edges), each.reading, each.left_out_samples)
        for name, each in told.items()
    }


def roll_back(request: pb.RollBackRequest) -> events.RollBackRequested:
    return events.RollBackRequested(request.job_id, request.step, request.generation)


def configure_job(request: pb.ConfigureJobRequest) -> events.JobConfigureRequested:
    rules: Any = request.retention
    retention = Retention(
        rules.keep_count, rules.keep_every, rules.best_metric, rules.best_mode or "min", rules.best_count or 1
    )
    said: Any = request
    settings = JobSettings(said.barriers or "fail", said.recovery or "rollback", said.saves or "skip", retention)
    return events.JobConfigureRequested(request.job_id, settings)


def request_checkpoint(request: pb.RequestCheckpointRequest) -> events.SaveRequested:
    return events.SaveRequested(request.job_id, request.reason, request.within_seconds)


def drain_worker(request: pb.DrainWorkerRequest) -> events.DrainRequested:
    return events.DrainRequested(request.job_id, request.worker_id, request.reason, _maybe(request, "incarnation"))


def stop_job(request: pb.StopJobRequest) -> events.StopRequested:
    save = not request.without_checkpoint
    return events.StopRequested(request.job_id, request.reason, save, request.within_seconds)


# -- answers ---------------------------------------------------------------------------------------------------------


def registered(answer: Registered) -> pb.RegisterResponse:
    return pb.RegisterResponse(
        worker_id=answer.worker,
        incarnation=answer.incarnation,
        rank=answer.rank,
        world_size=answer.world_size,
        generation=answer.generation,
        term=answer.term,
        heartbeat_seconds=answer.heartbeat_seconds,
        lease_seconds=answer.lease_seconds,
        reason=answer.reason,
    )


def command(errand: Errand) -> pb.Command:
    return pb.Command(
        kind=_COMMANDS[errand.kind],
        attempt=errand.attempt,
        step=errand.step,
        request=errand.request,
        reason=errand.reason,
        last=errand.last,
    )


def alive(answer: Alive) -> pb.HeartbeatResponse:
    return pb.HeartbeatResponse(generation=answer.generation, commands=[command(errand) for errand in answer.errands])


def verdict(over: ReleaseBarrier | BreakBarrier | BarrierVerdict | DismissArrival) -> bytes | RpcError:
    """What everybody who waits is told, made once for all of them."""
    if isinstance(over, DismissArrival):
        why = f"worker {over.worker!r} waits no more at barrier {over.barrier!r}: {over.reason}"
        kinds: dict[str, type[StrataError]] = {"superseded": Superseded} | dict.fromkeys(
            ("died", "expired", "left"), Expired
        )
        return to_rpc(kinds.get(over.cause, Refused)(why))
    broken = isinstance(over, BreakBarrier) or (isinstance(over, BarrierVerdict) and not over.released)
    if broken:
        missing = () if isinstance(over, ReleaseBarrier) else over.missing
        return to_rpc(BarrierFailed(f"barrier {over.barrier!r} failed: {over.reason}", missing=missing))
    made = pb.WaitBarrierResponse(barrier_id=over.barrier, round=over.round, reason=over.reason)
    return made.SerializeToString()


def dataset_info(answer: DatasetInfo) -> pb.RegisterDatasetResponse:
    return pb.RegisterDatasetResponse(version=answer.version, epoch=answer.epoch)


def dataset(known: Dataset) -> pb.Dataset:
    return pb.Dataset(
        dataset_id=known.dataset,
        version=known.version,
        epoch=known.epoch,
        total_samples=known.total_samples,
        shard_size=known.shard_size,
        shuffle=known.shuffle,
        seed=known.seed,
        path=known.path,
        format=known.format,
        strategy=known.strategy,
        order=known.order,
        consumed_samples=known.consumed.count,
        fingerprint=known.fingerprint,
        columns=known.columns,
        left_out_samples=known.left_out,
    )


def ledger(job: Job, known: Dataset, from_place: int, most: int, owned: RankOwnership) -> pb.GetLedgerResponse:
    """At most so many ranges; who shares in the dataset is told with the first of them."""
    edges, world = known.consumed.onward(from_place, most), job.world
    holders = [
        pb.ShardHolder(
            rank=rank,
            worker_id=world.by_rank.get(rank, ""),
            shards=owned.load(rank),
            giving_up=len(known.owing.get(world.by_rank.get(rank, ""), ())),
        )
        for rank in ([] if from_place else world.roster())
    ]
    return pb.GetLedgerResponse(
        dataset=dataset(known),
        generation=world.generation,
        point=job.points,
        consumed=pb.Ranges(edges=edges),
        next_place=edges[-1] if edges and known.consumed.onward(edges[-1], 1) else None,
        reissued_samples=known.reissued,
        finished=[
            pb.FinishedEpoch(
                version=each.version,
                epoch=each.epoch,
                total_samples=each.total,
                consumed_samples=each.consumed,
                reissued_samples=each.reissued,
                reading=each.reading,
                left_out_samples=each.left_out,
            )
            for each in known.proofs
        ],
        holders=holders,
        reading=known.reading,
        unproven_epochs=known.unproven,
    )


def assignments(answer: Assignments) -> pb.GetAssignmentsResponse:
    share = answer.levelled
    return pb.GetAssignmentsResponse(
        version=answer.version,
        epoch=answer.epoch,
        generation=answer.generation,
        point=answer.point,
        granted=answer.granted,
        awaited=answer.awaited,
        revoked=answer.revoked,
        cursors=answer.cursors,
        beyond={shard: pb.Ranges(edges=edges) for shard, edges in answer.beyond.items()},
        levelled=None
        if share is None
        else pb.LevelledShare(ranks=share.ranks, left=share.left, edges=share.stretches, read=share.read),
    )


def ledger_now(answer: LedgerNow) -> pb.ReportBatchesResponse:
    return pb.ReportBatchesResponse(epoch=answer.epoch, absent=answer.absent, consumed_samples=answer.consumed)


def epoch_now(answer: EpochNow) -> pb.AdvanceEpochResponse:
    return pb.AdvanceEpochResponse(epoch=answer.epoch)


def begun(answer: Begun | Skipped) -> pb.BeginCheckpointResponse:
    if isinstance(answer, Skipped):
        return pb.BeginCheckpointResponse(skipped=True, reason=answer.reason, step=answer.step)
    return pb.BeginCheckpointResponse(
        attempt=answer.attempt, lineage=answer.lineage, step=answer.step, status=ATTEMPT_STATUS[answer.status]
    )


def acknowledged(answer: Acknowledged) -> pb.AckCheckpointResponse:
    return pb.AckCheckpointResponse(status=ATTEMPT_STATUS[answer.status], put_manifest=answer.put_manifest)


def recovery_point(answer: RecoveryPoint | FinishFirst) -> pb.RecoverResponse:
    if isinstance(answer, FinishFirst):
        return pb.RecoverResponse(finish_first=command(answer.errand))
    point = pb.RecoveryPoint(
        generation=answer.generation,
        lineage=answer.lineage,
        attempt=answer.attempt,
        step=answer.step,
        epoch=answer.epoch,
        reason=answer.reason,
        ranks=answer.ranks,
        point=answer.point,
        place=answer.place,
        carries_on=answer.carries_on,
    )
    return pb.RecoverResponse(point=point)


def lineage_now(answer: LineageNow) -> pb.RollBackResponse:
    return pb.RollBackResponse(lineage=answer.lineage, generation=answer.generation)


def save_asked(answer: SaveAsked) -> pb.RequestCheckpointResponse:
    return pb.RequestCheckpointResponse(request=answer.request, step=answer.step)


def checkpoint(attempt: Attempt) -> pb.Checkpoint:
    """An attempt, without its parts."""
    return pb.Checkpoint(
        attempt=attempt.attempt,
        lineage=attempt.lineage,
        step=attempt.step,
        epoch=attempt.epoch,
        term=attempt.term,
        generation=attempt.generation,
        status=ATTEMPT_STATUS[attempt.status],
        participants=len(attempt.participants),
        total_bytes=attempt.total_bytes,
        references=attempt.references,
        pins=attempt.pins,
        place=attempt.place,
    )


def add_parts(made: pb.Checkpoint, attempt: Attempt, ranks: Iterable[int]) -> None:
    """These ranks' parts, and the data positions."""
    for rank in ranks:
        part = attempt.parts[rank]
        made.parts.add(
            rank=rank,
            worker_id=part.worker,
            incarnation=part.incarnation,
            digest=part.digest,
            part_bytes=part.part_bytes,
            metrics=part.metrics,
            place=part.place,
        )
    for name, position in attempt.positions.items():
        told = made.positions[name]
        told.version, told.epoch = position.version, position.epoch
        told.reading = position.reading
        told.consumed.edges.extend(position.consumed)
        told.left_out_samples = position.left_out


def always(response: Any) -> Callable[[Any], bytes]:
    """The same bytes for every answer: those that say nothing more than that it is done."""
    made: bytes = response.SerializeToString()
    return lambda _: made
