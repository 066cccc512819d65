"""Every argument of the public names: what is wrong with it is said by name, or it works.

The walk goes over the signatures themselves: a new argument is tried here the day it is there, with every wrong value
of its kind, and one that is required has to be given a sound value in `SOUND`.
"""

import asyncio
import inspect
import itertools
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strata
import strata.data
from strata.data.joining import Source
from strata.errors import (
    NotFound,
    NotRegistered,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    StorageUnavailable,
    StrataError,
)
from strata.rpc import RpcError
from strata.session import Session
from strata.storage import StorageBackend

HUGE = 2**70
ARRAY = np.zeros(2)
WHOLE: list[Any] = ["1", 1.5, math.nan, math.inf, -1, -HUGE, HUGE, True, np.int64(1), np.float64(1.5), [1], b"1", ARRAY]
REAL: list[Any] = [
    "1",
    math.nan,
    math.inf,
    -math.inf,
    -1.0,
    -1,
    HUGE,
    True,
    np.float32(0.5),
    np.int64(1),
    [1.0],
    b"1",
    ARRAY,
]
FLAG: list[Any] = [1, 0, "yes", np.True_, np.False_, [], 0.5, ARRAY]
TEXT: list[Any] = [5, b"text", "", "a\nb", "x" * 5000, True, ["text"], {"text": 1}, np.str_("text"), math.nan, ARRAY]
CHOICE: list[Any] = [5, "no such", [], {}, True, math.nan, ARRAY]
MAPPING: list[Any] = [5, "text", [1], {1: 2}, {"a": object()}, {"a": math.nan}, True, ARRAY]
LIST: list[Any] = [5, "text", [5], [None], {"a": 1}, True, ARRAY]
CALLABLE: list[Any] = [5, "text", [], True, ARRAY]
OBJECT: list[Any] = [5, "text", [], object(), math.nan, ARRAY]


def kinds(hint: Any) -> list[list[Any]]:
    """The wrong values for an argument that is declared so; None where it may be anything."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return []
    if origin in (Union, types.UnionType):
        return [values for each in inner if each is not types.NoneType for values in kinds(each)]
    if origin is Literal:
        return [CHOICE]
    plain = {int: WHOLE, float: REAL, bool: FLAG, str: TEXT, os.PathLike: TEXT, types.EllipsisType: OBJECT}
    for kind, values in plain.items():
        if hint is kind or origin is kind:
            return [values]
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return [MAPPING]
    if origin is Callable or getattr(origin, "__name__", "") == "Callable":
        return [CALLABLE]
    if origin is not None:
        return [LIST]
    return [OBJECT]


def index_of(folder: Path) -> Any:
    if not (folder / "rows").exists():
        (folder / "rows").mkdir()
        pq.write_table(pa.table({"id": list(range(40))}), folder / "rows" / "0.parquet")
    return strata.data.index_dataset(folder / "rows", "parquet")


def manager(folder: Path) -> strata.CheckpointManager:
    made = strata.CheckpointManager(folder / "saved", coordinator_url="")
    if not made.list_checkpoints():
        made.save({"w": np.zeros(2)}, step=1)
    return made


def reader(folder: Path) -> strata.CheckpointReader:
    manager(folder).close()
    return strata.CheckpointReader(folder / "saved")


def memory(folder: Path) -> strata.MemoryStorage:
    made = strata.MemoryStorage()
    asyncio.run(made.write("a/b", b"0123456789"))
    return made


def local(folder: Path) -> strata.LocalStorage:
    made = strata.LocalStorage(folder / "local")
    asyncio.run(made.write("a/b", b"0123456789"))
    return made


def shards(folder: Path) -> strata.ShardManager:
    made = strata.ShardManager()
    made.register_worker("w0")
    made.register_dataset_params("images", 100, 10)
    return made


def epochs(folder: Path) -> strata.EpochCoordinator:
    made = strata.EpochCoordinator()
    made.register("images", 100, 10)
    return made


def loader(folder: Path) -> strata.data.Loader:
    return strata.data.Loader(index_of(folder), 4, threads=1)


def orchestrator(folder: Path) -> strata.TrainingOrchestrator:
    return strata.TrainingOrchestrator(
        "w0", "127.0.0.1:1", 1, 0, config=strata.OrchestratorConfig(register_seconds=0.01)
    )


def mix(folder: Path) -> strata.data.Mix:
    return strata.data.Mix({loader(folder): 1.0}, 4)


def saved_index(folder: Path) -> Path:
    strata.data.save_index(index_of(folder), folder / "index")
    return folder / "index"


def training(folder: Path) -> strata.Training:
    return strata.Training({"w": np.zeros(2)}, loader(folder), manager(folder))


SOUND: dict[str, Any] = {
    "barrier_id": "epoch",
    "batch": 0,
    "bucket": "bucket",
    "cause": "step",
    "container": "container",
    "data": b"0123456789",
    "dataset_id": "images",
    "epoch": 0,
    "files": [],
    "format": "parquet",
    "global_batch_size": 4,
    "length": 3,
    "name": "w",
    "number": 0,
    "path": "a/b",
    "paths": ["a/b"],
    "ranges": [(0, 3)],
    "reason": "maintenance",
    "samples": np.zeros(1, int),
    "shard_size": 10,
    "start": 0,
    "state": {"w": np.zeros(2)},
    "step": 1,
    "targets": [bytearray(3)],
    "total_samples": 100,
    "within_seconds": 1.0,
    "worker_id": "w0",
    "worker_rank": 0,
    "version": None,
    "listener": print,
    "where": None,
    "data_loader": [],
}
"""A value for each argument that has to be given, by its name; `OWN` where a call wants another."""

CLASSES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "AzureStorage": lambda folder: {"account": "a", "account_key": "YQ=="},
    "BlockingStorage": lambda folder: {"storage": strata.MemoryStorage()},
    "CheckpointManager": lambda folder: {"path": folder / "made", "coordinator_url": ""},
    "CheckpointManagerConfig": lambda folder: {},
    "CheckpointReader": lambda folder: {"path": folder / "made"},
    "DatasetRegistry": lambda folder: {"coordinator_url": "127.0.0.1:1", "timeout": 0.05},
    "EpochCoordinator": lambda folder: {},
    "GCSStorage": lambda folder: {},
    "LocalStorage": lambda folder: {"root": folder / "local"},
    "MemoryStorage": lambda folder: {},
    "OrchestratorConfig": lambda folder: {},
    "Retention": lambda folder: {},
    "S3Storage": lambda folder: {"access_key_id": "a", "secret_access_key": "b"},
    "ShardManager": lambda folder: {},
    "StorageOptions": lambda folder: {},
    "Training": lambda folder: {"loader": loader(folder), "manager": manager(folder)},
    "TrainingOrchestrator": lambda folder: {"worker_id": "w0", "coordinator_url": "127.0.0.1:1"},
    "open_storage": lambda folder: {"url": "memory://"},
    "data.AffinityLoader": lambda folder: {"batch_size": 4, "coordinator_url": "127.0.0.1:1", "job_id": "j"},
    "data.Loader": lambda folder: {"dataset": index_of(folder), "global_batch_size": 4, "threads": 1},
    "data.Mix": lambda folder: {"loaders": {loader(folder): 1.0}},
    "data.ResumableSampler": lambda folder: {},
    "data.index_dataset": lambda folder: {"path": index_of(folder) and folder / "rows"},
    "data.load_index": lambda folder: {"path": saved_index(folder)},
    "data.save_index": lambda folder: {"index": index_of(folder), "path": folder / "made-index"},
}
STORAGE = [name for name in vars(StorageBackend) if not name.startswith("_") and name not in ("url", "close")]
METHODS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "CheckpointManager": (manager, []),
    "CheckpointReader": (reader, []),
    "DatasetRegistry": (lambda folder: strata.DatasetRegistry("127.0.0.1:1", timeout=0.05), []),
    "EpochCoordinator": (epochs, []),
    "LocalStorage": (local, STORAGE),
    "MemoryStorage": (memory, STORAGE),
    "BlockingStorage": (lambda folder: strata.BlockingStorage(memory(folder)), STORAGE),
    "ShardManager": (shards, []),
    "Training": (training, []),
    "TrainingOrchestrator": (orchestrator, []),
    "data.Loader": (loader, ["load_state_dict", "samples", "set_epoch", "over"]),
    "data.Mix": (mix, ["load_state_dict", "over"]),
    "data.ResumableSampler": (lambda folder: strata.data.ResumableSampler(100, 4), []),
    "data.DatasetIndex": (index_of, ["check", "locate", "read"]),
}
"""What has methods, and which of them are for users, if not all."""

INSIDE = {
    "SaveEvent": "is given to listeners",
    "SaveHandle": "is given by save_async",
    "ShardAssignment": "is given by registries",
    "StorageBackend": "is a protocol",
    "data.DatasetIndex": "is given by index_dataset",
    "PerRank": "marks any value",
    "Replicated": "marks any value",
}
UNREGISTERED = "is not registered"
SPOKEN = {
    "dataset": "dataset|path|format|there is no|no format",
    "data_loader": "data_loader|DataLoader",
    "local": "local|not everything is in",
    "targets": "targets|data|memory",
    "endpoint": "endpoint|URL|builder",
    "metrics": "metrics?",
    "path": "path|key|root",
    "paths": "paths|key",
    "prefix": "key",
}
"""What errors call an argument, where that is the word of its room."""
ANYTHING = {"CheckpointManager.load_slice(index)", "CheckpointReader.load_slice(index)"}
"""Whatever numpy takes."""
UNNAMED: dict[str, Any] = dict.fromkeys(("DatasetIndex", "WorkerDataset", "EndlessDataset"), Any)
UNNAMED |= dict.fromkeys(("PartWriter", "BlockingWriter", "CheckpointManager"), Any)
"""Of results alone."""


def found(name: str) -> Any:
    home = strata.data if name.startswith("data.") else strata
    return getattr(home, name.removeprefix("data."))


def parameters_of(call: Any) -> dict[str, tuple[inspect.Parameter, Any]]:
    """Each parameter, and how it is declared."""
    target = call.__init__ if inspect.isclass(call) and not hasattr(call, "__struct_fields__") else call
    if hasattr(call, "__struct_fields__"):
        hints = get_type_hints(call)
        return {
            name: (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY), hints[name])
            for name in call.__struct_fields__
        }
    module = inspect.getmodule(inspect.unwrap(target))
    names = {**vars(typing), **vars(strata.data), "Source": Source, "pa": pa, "Session": Session, **UNNAMED}
    hints = get_type_hints(inspect.unwrap(target), {**names, **vars(module)})
    parameters = inspect.signature(target).parameters
    return {name: (each, hints.get(name, Any)) for name, each in parameters.items() if name != "self"}


def cases() -> Iterator[Any]:
    for name in CLASSES:
        call = found(name)
        for parameter, (_, hint) in parameters_of(call).items():
            yield pytest.param(name, "", parameter, hint, id=f"{name}({parameter})")
    for name, (_, chosen) in METHODS.items():
        owner = found(name)
        for method in chosen or [each for each in dir(owner) if not each.startswith("_")]:
            call = inspect.getattr_static(owner, method)
            if not inspect.isfunction(call) or method.endswith("_async"):
                continue
            for parameter, (about, hint) in parameters_of(call).items():
                called = f"{name}.{method}({parameter})"
                if called not in ANYTHING and about.kind is not about.VAR_KEYWORD:
                    yield pytest.param(name, method, parameter, hint, id=called)


async def awaited(value: Any) -> Any:
    return [each async for each in value] if hasattr(value, "__aiter__") else await value


def done(call: Callable[[], Any]) -> None:
    """Called, waited for, iterated: an error may come as late as that."""
    value = call()
    if (inspect.isawaitable(value) and not isinstance(value, strata.SaveHandle)) or hasattr(value, "__aiter__"):
        asyncio.run(awaited(value))
    elif isinstance(value, strata.SaveHandle):
        value.result(10)
    elif isinstance(value, Iterator):
        list(value)
    elif hasattr(value, "__enter__") and not hasattr(value, "close"):
        with value:
            pass
    if isinstance(value, strata.data.Loader | strata.data.Mix | strata.data.ResumableSampler):
        next(iter(value))
    if hasattr(value, "close"):
        closed = value.close()
        if inspect.isawaitable(closed):
            asyncio.run(awaited(closed))


class PastTheChecks(StrataError):
    """A coordinator would be asked now."""


ELSEWHERE = (
    PastTheChecks,
    RpcError,
    NotFound,
    StorageUnavailable,
    NotRegistered,
    ObjectNotFound,
    ObjectChanged,
    ObjectExists,
)
"""The call got past the checks, and then did not find its object, or found one where none should be."""


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever would join a job has had its arguments checked by then."""
    monkeypatch.chdir(tmp_path)

    def reached(*_: object, **__: object) -> None:
        raise PastTheChecks("past the checks")

    for name in ("strata.data.joining.join", "strata.session.session.Session.join"):
        monkeypatch.setattr(name, reached, raising=False)


CLOSED = (strata.CheckpointReader, strata.BlockingStorage, strata.DatasetRegistry, strata.data.Loader)


def call_with(name: str, method: str, parameter: str, value: Any, folder: Path) -> None:
    """Everything else is sound."""
    with ExitStack() as used:
        owner = METHODS[name][0](folder) if method else None
        if isinstance(owner, CLOSED):
            used.callback(owner.close)
        call = getattr(owner, method) if method else found(name)
        given = {} if method else CLASSES[name](folder)
        for other, (each, _) in parameters_of(call).items():
            required = each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
            if required and other not in given and not hasattr(call, "__struct_fields__"):
                given[other] = SOUND[other]
        done(partial(call, **{**given, parameter: value}))


@pytest.mark.parametrize(("name", "method", "parameter", "hint"), list(cases()))
def test_what_is_wrong_with_an_argument_is_said_by_its_name(
    name: str, method: str, parameter: str, hint: Any, tmp_path: Path
) -> None:
    word = re.compile(rf"\b({SPOKEN.get(parameter, parameter)})\b", re.IGNORECASE)
    for value in itertools.chain(*kinds(hint)):
        with suppress(*ELSEWHERE):
            try:
                call_with(name, method, parameter, value, tmp_path)
            except StrataError as error:  # any other fails the test by itself
                if not word.search(str(error)) and UNREGISTERED not in str(error):
                    raise


def test_every_public_name_is_walked() -> None:
    names = {*strata.__all__, *(f"data.{name}" for name in strata.data.__all__)}
    errors = {name for name in names if isinstance(found(name), type) and issubclass(found(name), Exception)}
    assert names - errors == {*CLASSES, *INSIDE}
