from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_INITIALIZING: _ClassVar[WorkerState]
    WORKER_STATE_IDLE: _ClassVar[WorkerState]
    WORKER_STATE_LOADING: _ClassVar[WorkerState]
    WORKER_STATE_TRAINING: _ClassVar[WorkerState]
    WORKER_STATE_CHECKPOINTING: _ClassVar[WorkerState]
    WORKER_STATE_RECOVERING: _ClassVar[WorkerState]
    WORKER_STATE_FAILED: _ClassVar[WorkerState]
    WORKER_STATE_LEFT: _ClassVar[WorkerState]

class AttemptStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTEMPT_STATUS_UNSPECIFIED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_OPEN: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_DECIDED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_COMMITTED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_DAMAGED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_DOOMED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_UNLINKED: _ClassVar[AttemptStatus]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_INITIALIZING: WorkerState
WORKER_STATE_IDLE: WorkerState
WORKER_STATE_LOADING: WorkerState
WORKER_STATE_TRAINING: WorkerState
WORKER_STATE_CHECKPOINTING: WorkerState
WORKER_STATE_RECOVERING: WorkerState
WORKER_STATE_FAILED: WorkerState
WORKER_STATE_LEFT: WorkerState
ATTEMPT_STATUS_UNSPECIFIED: AttemptStatus
ATTEMPT_STATUS_OPEN: AttemptStatus
ATTEMPT_STATUS_DECIDED: AttemptStatus
ATTEMPT_STATUS_COMMITTED: AttemptStatus
ATTEMPT_STATUS_DAMAGED: AttemptStatus
ATTEMPT_STATUS_DOOMED: AttemptStatus
ATTEMPT_STATUS_UNLINKED: AttemptStatus

class RegisterRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "nonce", "rank", "world_size", "previous_incarnation", "ip", "port", "gpu_count", "memory_bytes", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    nonce: str
    rank: int
    world_size: int
    previous_incarnation: int
    ip: str
    port: int
    gpu_count: int
    memory_bytes: int
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., nonce: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., previous_incarnation: _Optional[int] = ..., ip: _Optional[str] = ..., port: _Optional[int] = ..., gpu_count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("worker_id", "incarnation", "rank", "world_size", "generation", "term", "heartbeat_seconds", "lease_seconds", "reason")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    rank: int
    world_size: int
    generation: int
    term: int
    heartbeat_seconds: float
    lease_seconds: float
    reason: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., generation: _Optional[int] = ..., term: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class DeregisterRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "reason", "died")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    reason: str
    died: bool
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ..., died: _Optional[bool] = ...) -> None: ...

class DeregisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "state", "step", "epoch", "promised_request", "promised_step", "resources", "vouched")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMISED_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROMISED_STEP_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    VOUCHED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    state: WorkerState
    step: int
    epoch: int
    promised_request: int
    promised_step: int
    resources: _containers.ScalarMap[str, float]
    vouched: bool
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., state: _Optional[_Union[WorkerState, str]] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., promised_request: _Optional[int] = ..., promised_step: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ..., vouched: _Optional[bool] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("generation", "commands")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, generation: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("kind", "attempt", "step", "request", "reason", "last")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Command.Kind]
        KIND_SAVE_PART: _ClassVar[Command.Kind]
        KIND_PUT_MANIFEST: _ClassVar[Command.Kind]
        KIND_REMOVE_MANIFEST: _ClassVar[Command.Kind]
        KIND_REMOVE_FILES: _ClassVar[Command.Kind]
        KIND_PROPOSE_SAVE: _ClassVar[Command.Kind]
        KIND_SAVE_AT: _ClassVar[Command.Kind]
        KIND_DRAIN: _ClassVar[Command.Kind]
        KIND_STOP: _ClassVar[Command.Kind]
    KIND_UNSPECIFIED: Command.Kind
    KIND_SAVE_PART: Command.Kind
    KIND_PUT_MANIFEST: Command.Kind
    KIND_REMOVE_MANIFEST: Command.Kind
    KIND_REMOVE_FILES: Command.Kind
    KIND_PROPOSE_SAVE: Command.Kind
    KIND_SAVE_AT: Command.Kind
    KIND_DRAIN: Command.Kind
    KIND_STOP: Command.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    kind: Command.Kind
    attempt: int
    step: int
    request: int
    reason: str
    last: bool
    def __init__(self, kind: _Optional[_Union[Command.Kind, str]] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., request: _Optional[int] = ..., reason: _Optional[str] = ..., last: _Optional[bool] = ...) -> None: ...

class HeartbeatBatchRequest(_message.Message):
    __slots__ = ("job_id", "heartbeats")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    heartbeats: _containers.RepeatedCompositeFieldContainer[HeartbeatRequest]
    def __init__(self, job_id: _Optional[str] = ..., heartbeats: _Optional[_Iterable[_Union[HeartbeatRequest, _Mapping]]] = ...) -> None: ...

class HeartbeatBatchResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[HeartbeatOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[HeartbeatOutcome, _Mapping]]] = ...) -> None: ...

class HeartbeatOutcome(_message.Message):
    __slots__ = ("worker_id", "alive", "refused")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    alive: HeartbeatResponse
    refused: HeartbeatRefusal
    def __init__(self, worker_id: _Optional[str] = ..., alive: _Optional[_Union[HeartbeatResponse, _Mapping]] = ..., refused: _Optional[_Union[HeartbeatRefusal, _Mapping]] = ...) -> None: ...

class HeartbeatRefusal(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GetWorldRequest(_message.Message):
    __slots__ = ("job_id", "from_rank", "generation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    from_rank: int
    generation: int
    def __init__(self, job_id: _Optional[str] = ..., from_rank: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class GetWorldResponse(_message.Message):
    __slots__ = ("generation", "declared_size", "term", "peers", "next_rank")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DECLARED_SIZE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_RANK_FIELD_NUMBER: _ClassVar[int]
    generation: int
    declared_size: int
    term: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    next_rank: int
    def __init__(self, generation: _Optional[int] = ..., declared_size: _Optional[int] = ..., term: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., next_rank: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "worker_id", "incarnation", "ip", "port", "gpu_count", "metadata", "draining")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    rank: int
    worker_id: str
    incarnation: int
    ip: str
    port: int
    gpu_count: int
    metadata: _containers.ScalarMap[str, str]
    draining: bool
    def __init__(self, rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., ip: _Optional[str] = ..., port: _Optional[int] = ..., gpu_count: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., draining: _Optional[bool] = ...) -> None: ...

class WaitBarrierRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "barrier_id", "arrival", "settled", "expected_participants", "timeout_seconds", "generation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    barrier_id: str
    arrival: int
    settled: int
    expected_participants: int
    timeout_seconds: float
    generation: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., barrier_id: _Optional[str] = ..., arrival: _Optional[int] = ..., settled: _Optional[int] = ..., expected_participants: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., generation: _Optional[int] = ...) -> None: ...

class WaitBarrierResponse(_message.Message):
    __slots__ = ("barrier_id", "round", "reason")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    round: int
    reason: str
    def __init__(self, barrier_id: _Optional[str] = ..., round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("dataset_id", "version", "epoch", "total_samples", "shard_size", "shuffle", "seed", "path", "format", "strategy", "order", "consumed_samples", "fingerprint", "columns", "left_out_samples")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    version: int
    epoch: int
    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int
    path: str
    format: str
    strategy: str
    order: str
    consumed_samples: int
    fingerprint: str
    columns: str
    left_out_samples: int
    def __init__(self, dataset_id: _Optional[str] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., total_samples: _Optional[int] = ..., shard_size: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., path: _Optional[str] = ..., format: _Optional[str] = ..., strategy: _Optional[str] = ..., order: _Optional[str] = ..., consumed_samples: _Optional[int] = ..., fingerprint: _Optional[str] = ..., columns: _Optional[str] = ..., left_out_samples: _Optional[int] = ...) -> None: ...

class RegisterDatasetRequest(_message.Message):
    __slots__ = ("job_id", "dataset_id", "total_samples", "shard_size", "shuffle", "seed", "path", "format", "strategy", "order", "replaces_version", "fingerprint", "columns")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    REPLACES_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int
    path: str
    format: str
    strategy: str
    order: str
    replaces_version: int
    fingerprint: str
    columns: str
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., total_samples: _Optional[int] = ..., shard_size: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., path: _Optional[str] = ..., format: _Optional[str] = ..., strategy: _Optional[str] = ..., order: _Optional[str] = ..., replaces_version: _Optional[int] = ..., fingerprint: _Optional[str] = ..., columns: _Optional[str] = ...) -> None: ...

class RegisterDatasetResponse(_message.Message):
    __slots__ = ("version", "epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class UnregisterDatasetRequest(_message.Message):
    __slots__ = ("job_id", "dataset_id", "version")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    version: int
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class UnregisterDatasetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets",)
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ...) -> None: ...

class GetLedgerRequest(_message.Message):
    __slots__ = ("job_id", "dataset_id", "from_place")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_PLACE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    from_place: int
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., from_place: _Optional[int] = ...) -> None: ...

class GetLedgerResponse(_message.Message):
    __slots__ = ("dataset", "generation", "point", "consumed", "next_place", "reissued_samples", "finished", "holders", "reading", "unproven_epochs")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PLACE_FIELD_NUMBER: _ClassVar[int]
    REISSUED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    UNPROVEN_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    generation: int
    point: int
    consumed: Ranges
    next_place: int
    reissued_samples: int
    finished: _containers.RepeatedCompositeFieldContainer[FinishedEpoch]
    holders: _containers.RepeatedCompositeFieldContainer[ShardHolder]
    reading: str
    unproven_epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., generation: _Optional[int] = ..., point: _Optional[int] = ..., consumed: _Optional[_Union[Ranges, _Mapping]] = ..., next_place: _Optional[int] = ..., reissued_samples: _Optional[int] = ..., finished: _Optional[_Iterable[_Union[FinishedEpoch, _Mapping]]] = ..., holders: _Optional[_Iterable[_Union[ShardHolder, _Mapping]]] = ..., reading: _Optional[str] = ..., unproven_epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class FinishedEpoch(_message.Message):
    __slots__ = ("version", "epoch", "total_samples", "consumed_samples", "reissued_samples", "reading", "left_out_samples")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REISSUED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    total_samples: int
    consumed_samples: int
    reissued_samples: int
    reading: str
    left_out_samples: int
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., total_samples: _Optional[int] = ..., consumed_samples: _Optional[int] = ..., reissued_samples: _Optional[int] = ..., reading: _Optional[str] = ..., left_out_samples: _Optional[int] = ...) -> None: ...

class ShardHolder(_message.Message):
    __slots__ = ("rank", "worker_id", "shards", "giving_up")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    GIVING_UP_FIELD_NUMBER: _ClassVar[int]
    rank: int
    worker_id: str
    shards: int
    giving_up: int
    def __init__(self, rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., shards: _Optional[int] = ..., giving_up: _Optional[int] = ...) -> None: ...

class GetShardsRequest(_message.Message):
    __slots__ = ("job_id", "dataset_id", "rank", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    rank: int
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., rank: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetShardsResponse(_message.Message):
    __slots__ = ("version", "epoch", "generation", "shard_ids", "total_samples", "shard_size", "path", "format", "fingerprint", "columns")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARD_IDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    generation: int
    shard_ids: _containers.RepeatedScalarFieldContainer[int]
    total_samples: int
    shard_size: int
    path: str
    format: str
    fingerprint: str
    columns: str
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., shard_ids: _Optional[_Iterable[int]] = ..., total_samples: _Optional[int] = ..., shard_size: _Optional[int] = ..., path: _Optional[str] = ..., format: _Optional[str] = ..., fingerprint: _Optional[str] = ..., columns: _Optional[str] = ...) -> None: ...

class GetAssignmentsRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "dataset_id", "level")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    dataset_id: str
    level: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., dataset_id: _Optional[str] = ..., level: _Optional[str] = ...) -> None: ...

class GetAssignmentsResponse(_message.Message):
    __slots__ = ("version", "epoch", "generation", "point", "granted", "awaited", "revoked", "cursors", "beyond", "levelled")
    class CursorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class BeyondEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Ranges
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Ranges, _Mapping]] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    LEVELLED_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    generation: int
    point: int
    granted: _containers.RepeatedScalarFieldContainer[int]
    awaited: _containers.RepeatedScalarFieldContainer[int]
    revoked: _containers.RepeatedScalarFieldContainer[int]
    cursors: _containers.ScalarMap[int, int]
    beyond: _containers.MessageMap[int, Ranges]
    levelled: LevelledShare
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., point: _Optional[int] = ..., granted: _Optional[_Iterable[int]] = ..., awaited: _Optional[_Iterable[int]] = ..., revoked: _Optional[_Iterable[int]] = ..., cursors: _Optional[_Mapping[int, int]] = ..., beyond: _Optional[_Mapping[int, Ranges]] = ..., levelled: _Optional[_Union[LevelledShare, _Mapping]] = ...) -> None: ...

class LevelledShare(_message.Message):
    __slots__ = ("ranks", "left", "edges", "read")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ranks: int
    left: int
    edges: _containers.RepeatedScalarFieldContainer[int]
    read: int
    def __init__(self, ranks: _Optional[int] = ..., left: _Optional[int] = ..., edges: _Optional[_Iterable[int]] = ..., read: _Optional[int] = ...) -> None: ...

class Ranges(_message.Message):
    __slots__ = ("edges",)
    EDGES_FIELD_NUMBER: _ClassVar[int]
    edges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, edges: _Optional[_Iterable[int]] = ...) -> None: ...

class AcknowledgeRevocationRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "dataset_id", "version", "epoch", "point", "generation", "shards", "cursors")
    class CursorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    dataset_id: str
    version: int
    epoch: int
    point: int
    generation: int
    shards: _containers.RepeatedScalarFieldContainer[int]
    cursors: _containers.ScalarMap[int, int]
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., dataset_id: _Optional[str] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., point: _Optional[int] = ..., generation: _Optional[int] = ..., shards: _Optional[_Iterable[int]] = ..., cursors: _Optional[_Mapping[int, int]] = ...) -> None: ...

class AcknowledgeRevocationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportProgressRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "dataset_id", "version", "epoch", "point", "cursors", "levelled")
    class CursorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    LEVELLED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    dataset_id: str
    version: int
    epoch: int
    point: int
    cursors: _containers.ScalarMap[int, int]
    levelled: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., dataset_id: _Optional[str] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., point: _Optional[int] = ..., cursors: _Optional[_Mapping[int, int]] = ..., levelled: _Optional[int] = ...) -> None: ...

class ReportProgressResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportBatchesRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "dataset_id", "version", "epoch", "generation", "point", "through", "reading", "over", "joins", "left_out")
    class LeftOutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    dataset_id: str
    version: int
    epoch: int
    generation: int
    point: int
    through: int
    reading: str
    over: bool
    joins: bool
    left_out: _containers.ScalarMap[int, int]
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., dataset_id: _Optional[str] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., point: _Optional[int] = ..., through: _Optional[int] = ..., reading: _Optional[str] = ..., over: _Optional[bool] = ..., joins: _Optional[bool] = ..., left_out: _Optional[_Mapping[int, int]] = ...) -> None: ...

class ReportBatchesResponse(_message.Message):
    __slots__ = ("epoch", "absent", "consumed_samples")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    absent: int
    consumed_samples: int
    def __init__(self, epoch: _Optional[int] = ..., absent: _Optional[int] = ..., consumed_samples: _Optional[int] = ...) -> None: ...

class AdvanceEpochRequest(_message.Message):
    __slots__ = ("job_id", "dataset_id", "from_epoch", "asked_by", "point")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    from_epoch: int
    asked_by: str
    point: int
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., from_epoch: _Optional[int] = ..., asked_by: _Optional[str] = ..., point: _Optional[int] = ...) -> None: ...

class AdvanceEpochResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class DataPosition(_message.Message):
    __slots__ = ("version", "epoch", "consumed", "reading", "left_out_samples")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    consumed: Ranges
    reading: str
    left_out_samples: int
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., consumed: _Optional[_Union[Ranges, _Mapping]] = ..., reading: _Optional[str] = ..., left_out_samples: _Optional[int] = ...) -> None: ...

class BeginCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "epoch", "generation", "references", "place", "skip")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    step: int
    epoch: int
    generation: int
    references: _containers.RepeatedScalarFieldContainer[int]
    place: str
    skip: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., references: _Optional[_Iterable[int]] = ..., place: _Optional[str] = ..., skip: _Optional[str] = ...) -> None: ...

class BeginCheckpointResponse(_message.Message):
    __slots__ = ("skipped", "reason", "attempt", "lineage", "step", "status")
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    skipped: bool
    reason: str
    attempt: int
    lineage: int
    step: int
    status: AttemptStatus
    def __init__(self, skipped: _Optional[bool] = ..., reason: _Optional[str] = ..., attempt: _Optional[int] = ..., lineage: _Optional[int] = ..., step: _Optional[int] = ..., status: _Optional[_Union[AttemptStatus, str]] = ...) -> None: ...

class AwaitCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "attempt", "known", "but_mine", "timeout_seconds")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    BUT_MINE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    step: int
    attempt: int
    known: AttemptStatus
    but_mine: bool
    timeout_seconds: float
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., known: _Optional[_Union[AttemptStatus, str]] = ..., but_mine: _Optional[bool] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class AwaitCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint", "skipped", "abandoned", "reason", "but_mine")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUT_MINE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    skipped: bool
    abandoned: bool
    reason: str
    but_mine: bool
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., skipped: _Optional[bool] = ..., abandoned: _Optional[bool] = ..., reason: _Optional[str] = ..., but_mine: _Optional[bool] = ...) -> None: ...

class CheckpointAck(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "attempt", "digest", "part_bytes", "positions", "metrics", "place")
    class PositionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DataPosition
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DataPosition, _Mapping]] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    attempt: int
    digest: str
    part_bytes: int
    positions: _containers.MessageMap[str, DataPosition]
    metrics: _containers.ScalarMap[str, str]
    place: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., attempt: _Optional[int] = ..., digest: _Optional[str] = ..., part_bytes: _Optional[int] = ..., positions: _Optional[_Mapping[str, DataPosition]] = ..., metrics: _Optional[_Mapping[str, str]] = ..., place: _Optional[str] = ...) -> None: ...

class AckCheckpointResponse(_message.Message):
    __slots__ = ("status", "put_manifest")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PUT_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    status: AttemptStatus
    put_manifest: bool
    def __init__(self, status: _Optional[_Union[AttemptStatus, str]] = ..., put_manifest: _Optional[bool] = ...) -> None: ...

class FailCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "attempt", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    attempt: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class FailCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "attempt")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    attempt: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class CommitCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Part(_message.Message):
    __slots__ = ("rank", "worker_id", "incarnation", "digest", "part_bytes", "metrics", "place")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    worker_id: str
    incarnation: int
    digest: str
    part_bytes: int
    metrics: _containers.ScalarMap[str, str]
    place: str
    def __init__(self, rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., digest: _Optional[str] = ..., part_bytes: _Optional[int] = ..., metrics: _Optional[_Mapping[str, str]] = ..., place: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("attempt", "lineage", "step", "epoch", "term", "generation", "status", "participants", "total_bytes", "references", "pins", "parts", "positions", "place")
    class PositionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DataPosition
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DataPosition, _Mapping]] = ...) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    lineage: int
    step: int
    epoch: int
    term: int
    generation: int
    status: AttemptStatus
    participants: int
    total_bytes: int
    references: _containers.RepeatedScalarFieldContainer[int]
    pins: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    positions: _containers.MessageMap[str, DataPosition]
    place: str
    def __init__(self, attempt: _Optional[int] = ..., lineage: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., term: _Optional[int] = ..., generation: _Optional[int] = ..., status: _Optional[_Union[AttemptStatus, str]] = ..., participants: _Optional[int] = ..., total_bytes: _Optional[int] = ..., references: _Optional[_Iterable[int]] = ..., pins: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., positions: _Optional[_Mapping[str, DataPosition]] = ..., place: _Optional[str] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "attempt", "from_rank")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FROM_RANK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    from_rank: int
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., from_rank: _Optional[int] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint", "next_rank")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NEXT_RANK_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    next_rank: int
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., next_rank: _Optional[int] = ...) -> None: ...

class LatestCheckpointRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class LatestCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("job_id", "page_size", "page_token")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    page_size: int
    page_token: str
    def __init__(self, job_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "next_page_token")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    next_page_token: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ReportDamageRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "attempt", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    attempt: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportDamageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "attempt", "name", "unpin")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNPIN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt: int
    name: str
    unpin: bool
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., name: _Optional[str] = ..., unpin: _Optional[bool] = ...) -> None: ...

class PinCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportRemovedRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "attempt", "what")
    class What(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHAT_UNSPECIFIED: _ClassVar[ReportRemovedRequest.What]
        WHAT_MANIFEST: _ClassVar[ReportRemovedRequest.What]
        WHAT_FILES: _ClassVar[ReportRemovedRequest.What]
        WHAT_ALL: _ClassVar[ReportRemovedRequest.What]
    WHAT_UNSPECIFIED: ReportRemovedRequest.What
    WHAT_MANIFEST: ReportRemovedRequest.What
    WHAT_FILES: ReportRemovedRequest.What
    WHAT_ALL: ReportRemovedRequest.What
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    attempt: int
    what: ReportRemovedRequest.What
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., attempt: _Optional[int] = ..., what: _Optional[_Union[ReportRemovedRequest.What, str]] = ...) -> None: ...

class ReportRemovedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecoverRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "found", "insist", "since", "earlier", "known_attempt")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    INSIST_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    KNOWN_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: int
    generation: int
    found: Found
    insist: bool
    since: int
    earlier: _containers.RepeatedCompositeFieldContainer[Found]
    known_attempt: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., generation: _Optional[int] = ..., found: _Optional[_Union[Found, _Mapping]] = ..., insist: _Optional[bool] = ..., since: _Optional[int] = ..., earlier: _Optional[_Iterable[_Union[Found, _Mapping]]] = ..., known_attempt: _Optional[int] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("step", "epoch", "place", "positions")
    class PositionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DataPosition
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DataPosition, _Mapping]] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    place: str
    positions: _containers.MessageMap[str, DataPosition]
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., place: _Optional[str] = ..., positions: _Optional[_Mapping[str, DataPosition]] = ...) -> None: ...

class RecoverResponse(_message.Message):
    __slots__ = ("point", "finish_first")
    POINT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIRST_FIELD_NUMBER: _ClassVar[int]
    point: RecoveryPoint
    finish_first: Command
    def __init__(self, point: _Optional[_Union[RecoveryPoint, _Mapping]] = ..., finish_first: _Optional[_Union[Command, _Mapping]] = ...) -> None: ...

class RecoveryPoint(_message.Message):
    __slots__ = ("generation", "lineage", "attempt", "step", "epoch", "reason", "ranks", "point", "place", "carries_on")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CARRIES_ON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    lineage: int
    attempt: int
    step: int
    epoch: int
    reason: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    point: int
    place: str
    carries_on: bool
    def __init__(self, generation: _Optional[int] = ..., lineage: _Optional[int] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., point: _Optional[int] = ..., place: _Optional[str] = ..., carries_on: _Optional[bool] = ...) -> None: ...

class RollBackRequest(_message.Message):
    __slots__ = ("job_id", "step", "generation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    generation: int
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class RollBackResponse(_message.Message):
    __slots__ = ("lineage", "generation")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    generation: int
    def __init__(self, lineage: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("keep_count", "keep_every", "best_metric", "best_mode", "best_count")
    KEEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEEP_EVERY_FIELD_NUMBER: _ClassVar[int]
    BEST_METRIC_FIELD_NUMBER: _ClassVar[int]
    BEST_MODE_FIELD_NUMBER: _ClassVar[int]
    BEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    keep_count: int
    keep_every: int
    best_metric: str
    best_mode: str
    best_count: int
    def __init__(self, keep_count: _Optional[int] = ..., keep_every: _Optional[int] = ..., best_metric: _Optional[str] = ..., best_mode: _Optional[str] = ..., best_count: _Optional[int] = ...) -> None: ...

class ConfigureJobRequest(_message.Message):
    __slots__ = ("job_id", "barriers", "recovery", "saves", "retention")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    barriers: str
    recovery: str
    saves: str
    retention: Retention
    def __init__(self, job_id: _Optional[str] = ..., barriers: _Optional[str] = ..., recovery: _Optional[str] = ..., saves: _Optional[str] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ...) -> None: ...

class ConfigureJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "reason", "within_seconds")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WITHIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    within_seconds: float
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ..., within_seconds: _Optional[float] = ...) -> None: ...

class RequestCheckpointResponse(_message.Message):
    __slots__ = ("request", "step")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    request: int
    step: int
    def __init__(self, request: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("job_id", "worker_id", "reason", "incarnation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    reason: str
    incarnation: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., reason: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ("job_id", "reason", "without_checkpoint", "within_seconds")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    WITHIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    without_checkpoint: bool
    within_seconds: float
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ..., without_checkpoint: _Optional[bool] = ..., within_seconds: _Optional[float] = ...) -> None: ...

class StopJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("job_id", "after")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    after: str
    def __init__(self, job_id: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("id", "unix_seconds", "job_id", "kind", "message", "severity", "worker_id", "step")
    ID_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    id: str
    unix_seconds: float
    job_id: str
    kind: str
    message: str
    severity: str
    worker_id: str
    step: int
    def __init__(self, id: _Optional[str] = ..., unix_seconds: _Optional[float] = ..., job_id: _Optional[str] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ..., severity: _Optional[str] = ..., worker_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...
