"""What a registry refuses before it asks anybody: no coordinator is there in these tests."""

import asyncio
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

from strata import DatasetRegistry
from strata.errors import InvalidInput, StrataError
from strata.rpc import RpcError, Status

NOWHERE = "127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("said", "environment", "where", "job"),
    [
        (("http://a:1",), {}, "a:1", "default"),
        (("https://a",), {}, "a:50051", "default"),
        (("a:1,b:2",), {}, "a:1, b:2", "default"),
        ((), {}, "127.0.0.1:50051", "default"),
        ((), {"COORDINATOR_URL": "c:3", "STRATA_JOB_ID": "llama"}, "c:3", "llama"),
        (("a:1",), {"COORDINATOR_URL": "c:3"}, "a:1", "default"),
    ],
)
def test_where_it_asks(
    said: tuple[str, ...], environment: dict[str, str], where: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with DatasetRegistry(*said) as registry:
        assert repr(registry) == f"DatasetRegistry({where!r}, job_id={job!r})"
        assert repr(pickle.loads(pickle.dumps(registry))) == repr(registry)


@pytest.mark.parametrize(
    "wrong",
    [
        {"coordinator_url": "ftp://a"},
        {"coordinator_url": "a:b"},
        {"job_id": "a/b"},
        {"job_id": 7},
        {"job_id": ""},
        {"timeout": 0},
        {"timeout": "5"},
        {"timeout": True},
    ],
)
def test_what_is_wrong_with_it_is_told_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        DatasetRegistry(**wrong)


@pytest.mark.parametrize(
    ("method", "arguments", "about"),
    [
        ("register", ("a/b", "/data", "parquet", 10), "dataset_id"),
        ("register", ("d", "", "parquet", 10), "path"),
        ("register", ("d", "/data", "", 10), "format"),
        ("register", ("d", "/data", "parquet", 0), "total_samples"),
        ("register", ("d", "/data", "parquet", 10, 0), "shard_size"),
        ("register", ("d", "/data", "parquet", 10, 1, "yes"), "shuffle"),
        ("get_shard", ("", 0), "dataset_id"),
        ("get_shard", ("d", -1), "worker_rank"),
        ("get_shard", ("d", 2**31), "worker_rank"),
        ("get_shard", ("d", 0, -1), "epoch"),
        ("get_assignments", ("d", 0, 0.5), "epoch"),
        ("advance_epoch", ("d", -1), "from_epoch"),
        ("advance_epoch", ("d/e",), "dataset_id"),
        ("unregister", ("d", 0), "version"),
    ],
)
def test_wrong_arguments_are_told_without_a_coordinator(method: str, arguments: tuple[Any, ...], about: str) -> None:
    with DatasetRegistry(NOWHERE) as registry:
        with pytest.raises(InvalidInput, match=about):
            getattr(registry, method)(*arguments)
        with pytest.raises(InvalidInput, match=about):
            asyncio.run(getattr(registry, f"{method}_async")(*arguments))


def test_wrong_versions_to_replace() -> None:
    with DatasetRegistry(NOWHERE) as registry:
        with pytest.raises(InvalidInput, match="replaces_version"):
            registry.register("d", "/data", "parquet", 10, replaces_version=0)
        with pytest.raises(InvalidInput, match="replace "):
            registry.register("d", "/data", "parquet", 10, replace=1)  # type: ignore[arg-type]


def test_nobody_there_is_told_in_time_with_the_address() -> None:
    with DatasetRegistry(NOWHERE, timeout=0.3) as registry:
        with pytest.raises(
            RpcError, match=r"no answer from 127\.0\.0\.1:9 .*cannot connect.*COORDINATOR_URL$"
        ) as raised:
            registry.list()
        assert (raised.value.status, raised.value.retry) == (Status.UNAVAILABLE, True)


def test_after_it_is_closed() -> None:
    registry = DatasetRegistry(NOWHERE)
    registry.close()
    registry.close()
    with pytest.raises(StrataError, match=r"closed.*127\.0\.0\.1:9.*make another"):
        registry.list()


def test_both_forms_of_each_call_take_and_give_the_same() -> None:
    awaited = [name for name in vars(DatasetRegistry) if name.endswith("_async")]
    assert len(awaited) > 5
    for name in awaited:
        one, other = (getattr(DatasetRegistry, each) for each in (name, name.removesuffix("_async")))
        assert inspect.signature(one) == inspect.signature(other), name
