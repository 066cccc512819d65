"""Records told to a person, one line each."""

from strata.core import records as r


def tell(record: r.Record) -> str:
    """What this record says, in a sentence without the job's name."""
    match record:
        case r.TermStarted():
            return f"coordinator serves term {record.term}"
        case r.WorkerJoined():
            return f"{record.worker} joined as incarnation {record.incarnation}: {record.reason}"
        case r.WorkerDescribed():
            return f"{record.worker} (incarnation {record.incarnation}) says where it is: {record.ip}:{record.port}"
        case r.WorkerLost():
            return f"{record.worker} (incarnation {record.incarnation}) is out, {record.cause}: {record.reason}"
        case r.WorkerDraining():
            return f"{record.worker} drains: {record.reason}"
        case r.WorldDeclared():
            return f"a world of {record.world_size or 'whoever joins'}: {record.reason}"
        case r.ViewChanged():
            return f"shards {'also go to' if record.joined else 'move away from'} rank {record.rank}: {record.reason}"
        case r.BarrierReleased():
            return f"barrier {record.barrier} released: {record.reason}"
        case r.BarrierBroken():
            return f"barrier {record.barrier} broken: {record.reason}"
        case r.DatasetRegistered():
            return f"dataset {record.dataset} version {record.version}: {record.total_samples} samples"
        case r.EpochAdvanced():
            return f"dataset {record.dataset} enters epoch {record.epoch}: {record.reason}"
        case r.EpochProven():
            return f"dataset {record.dataset} had ended epoch {record.epoch}: {record.reason}"
        case r.ShardsRevoked() | r.ShardsReleased():
            what = "must give up" if isinstance(record, r.ShardsRevoked) else "gave up"
            return f"{record.worker} {what} {count(record.shards)} shards of {record.dataset}"
        case r.ShardsReissued():
            return f"{record.samples} samples granted to {record.worker} go to others"
        case r.ProgressMade():
            return f"{record.worker or 'the job'} consumed {count(record.consumed)} samples of {record.dataset}"
        case r.CheckpointBegun():
            return f"attempt {record.attempt}: {record.reason}, {len(record.participants)} ranks"
        case r.CheckpointAdopted():
            return f"attempt {record.attempt}: {record.reason}"
        case r.CheckpointSkipped():
            return f"step {record.step} is not saved: {record.reason}"
        case r.PartAcknowledged():
            return f"attempt {record.attempt}: the part of {record.worker} is durable"
        case r.AttemptRecord():
            return (
                f"attempt {record.attempt} {type(record).__name__.removeprefix('Checkpoint').lower()}: {record.reason}"
            )
        case r.LineageStarted():
            return f"lineage {record.lineage} starts at step {record.base_step}: {record.reason}"
        case r.GenerationAdvanced():
            return f"generation {record.generation}: {record.reason}"
        case (
            r.SituationChanged()
            | r.JobStopping()
            | r.SaveWanted()
            | r.SaveAgreed()
            | r.SaveReopened()
            | r.SaveDropped()
            | r.HistoryLost()
        ):
            return f"{type(record).__name__}: {record.reason}"
        case r.RecoveryPointSet():
            return f"everybody goes on from step {record.step}, attempt {record.attempt}: {record.reason}"
        case _:
            return type(record).__name__


def count(flat: list[int]) -> int:
    """How many numbers flat ranges hold."""
    return sum(flat[1::2]) - sum(flat[::2])
