"""The public names of Strata, and nothing else.

Each name is imported from its home on first use, so `import strata` stays quick and pulls in no other package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "AzureStorage",
    "BarrierFailed",
    "BlockingStorage",
    "CheckpointDamaged",
    "CheckpointManager",
    "CheckpointManagerConfig",
    "CheckpointMismatch",
    "CheckpointReader",
    "Conflict",
    "DataChanged",
    "DataDamaged",
    "DataError",
    "DataMismatch",
    "DatasetRegistry",
    "EpochCoordinator",
    "Expired",
    "Fenced",
    "GCSStorage",
    "InvalidInput",
    "LocalStorage",
    "MemoryStorage",
    "NotFound",
    "NotRegistered",
    "ObjectChanged",
    "ObjectCorrupt",
    "ObjectExists",
    "ObjectNotFound",
    "OrchestratorConfig",
    "PerRank",
    "RankFailed",
    "Refused",
    "Replicated",
    "Retention",
    "S3Storage",
    "SaveAbandoned",
    "SaveEvent",
    "SaveFailed",
    "SaveHandle",
    "SaveReplaced",
    "SaveSkipped",
    "ShardAssignment",
    "ShardManager",
    "StaleGeneration",
    "StorageBackend",
    "StorageError",
    "StorageFull",
    "StorageOptions",
    "StorageUnavailable",
    "StrataError",
    "Superseded",
    "Training",
    "TrainingOrchestrator",
    "Unstorable",
    "open_storage",
]

_HOMES = {
    "AccessDenied": "strata.errors",
    "AzureStorage": "strata.storage.azure",
    "BarrierFailed": "strata.errors",
    "BlockingStorage": "strata.storage.blocking",
    "CheckpointDamaged": "strata.errors",
    "CheckpointManager": "strata.checkpoint.manager",
    "CheckpointManagerConfig": "strata.checkpoint.settings",
    "CheckpointMismatch": "strata.errors",
    "CheckpointReader": "strata.checkpoint.manager",
    "Conflict": "strata.errors",
    "DataChanged": "strata.errors",
    "DataDamaged": "strata.errors",
    "DataError": "strata.errors",
    "DataMismatch": "strata.errors",
    "DatasetRegistry": "strata.data.registry",
    "EpochCoordinator": "strata.sharding",
    "Expired": "strata.errors",
    "Fenced": "strata.errors",
    "GCSStorage": "strata.storage.gcs",
    "InvalidInput": "strata.errors",
    "LocalStorage": "strata.storage.local",
    "MemoryStorage": "strata.storage.memory",
    "NotFound": "strata.errors",
    "NotRegistered": "strata.errors",
    "ObjectChanged": "strata.errors",
    "ObjectCorrupt": "strata.errors",
    "ObjectExists": "strata.errors",
    "ObjectNotFound": "strata.errors",
    "OrchestratorConfig": "strata.worker.settings",
    "PerRank": "strata.checkpoint.marks",
    "RankFailed": "strata.errors",
    "Refused": "strata.errors",
    "Replicated": "strata.checkpoint.marks",
    "Retention": "strata.core.settings",
    "S3Storage": "strata.storage.s3",
    "SaveAbandoned": "strata.errors",
    "SaveEvent": "strata.checkpoint.telling",
    "SaveFailed": "strata.errors",
    "SaveHandle": "strata.checkpoint.handle",
    "SaveReplaced": "strata.errors",
    "SaveSkipped": "strata.errors",
    "ShardAssignment": "strata.sharding",
    "ShardManager": "strata.sharding",
    "StaleGeneration": "strata.errors",
    "StorageBackend": "strata.storage.backend",
    "StorageError": "strata.errors",
    "StorageFull": "strata.errors",
    "StorageOptions": "strata.storage.backend",
    "StorageUnavailable": "strata.errors",
    "StrataError": "strata.errors",
    "Superseded": "strata.errors",
    "Training": "strata.worker.training",
    "TrainingOrchestrator": "strata.worker.orchestrator",
    "Unstorable": "strata.errors",
    "open_storage": "strata.storage.urls",
}

if TYPE_CHECKING:
    from strata.checkpoint.handle import SaveHandle
    from strata.checkpoint.manager import CheckpointManager, CheckpointReader
    from strata.checkpoint.marks import PerRank, Replicated
    from strata.checkpoint.settings import CheckpointManagerConfig
    from strata.checkpoint.telling import SaveEvent
    from strata.core.settings import Retention
    from strata.data.registry import DatasetRegistry
    from strata.errors import (
        AccessDenied,
        BarrierFailed,
        CheckpointDamaged,
        CheckpointMismatch,
        Conflict,
        DataChanged,
        DataDamaged,
        DataError,
        DataMismatch,
        Expired,
        Fenced,
        InvalidInput,
        NotFound,
        NotRegistered,
        ObjectChanged,
        ObjectCorrupt,
        ObjectExists,
        ObjectNotFound,
        RankFailed,
        Refused,
        SaveAbandoned,
        SaveFailed,
        SaveReplaced,
        SaveSkipped,
        StaleGeneration,
        StorageError,
        StorageFull,
        StorageUnavailable,
        StrataError,
        Superseded,
        Unstorable,
    )
    from strata.sharding import EpochCoordinator, ShardAssignment, ShardManager
    from strata.storage.azure import AzureStorage
    from strata.storage.backend import StorageBackend, StorageOptions
    from strata.storage.blocking import BlockingStorage
    from strata.storage.gcs import GCSStorage
    from strata.storage.local import LocalStorage
    from strata.storage.memory import MemoryStorage
    from strata.storage.s3 import S3Storage
    from strata.storage.urls import open_storage
    from strata.worker.orchestrator import TrainingOrchestrator
    from strata.worker.settings import OrchestratorConfig
    from strata.worker.training import Training
else:
    # Hidden from type checkers: they would take any misspelt name for one that this function finds.
    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
