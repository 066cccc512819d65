"""The public surface is this list. A change here is a change for every user: say so in CHANGELOG.md."""

import importlib
import subprocess
import sys
from importlib import resources
from types import ModuleType

import pytest

import dtruntime
import strata

PUBLIC_NAMES = [
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

HEAVY = {"boto3", "grpc", "msgspec", "numpy", "obstore", "pyarrow", "torch"}


def test_the_public_names_are_these() -> None:
    assert sorted(strata.__all__) == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_each_name_is_there_and_the_same_under_the_older_name(name: str) -> None:
    assert getattr(strata, name).__name__ == name
    assert getattr(dtruntime, name) is getattr(strata, name)


@pytest.mark.parametrize("package", [strata, dtruntime])
def test_each_package_lists_the_names(package: ModuleType) -> None:
    assert package.__all__ == strata.__all__
    assert set(PUBLIC_NAMES) <= set(dir(package))
    assert package.__version__ == strata.__version__


@pytest.mark.parametrize("package", ["strata", "dtruntime"])
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'ShardManger'"):
        importlib.import_module(package).ShardManger  # noqa: B018


@pytest.mark.parametrize("package", ["strata", "dtruntime"])
def test_importing_imports_nothing_heavy(package: str) -> None:
    program = f"import sys, {package}; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert HEAVY.isdisjoint(answer.stdout.split())
    assert answer.stderr == ""


@pytest.mark.parametrize("package", ["strata", "dtruntime"])
def test_each_package_is_typed(package: str) -> None:
    assert resources.files(package).joinpath("py.typed").is_file()
