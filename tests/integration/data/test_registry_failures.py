"""`DatasetRegistry` where the coordinator dies, hangs, or wants to know who asks."""

import signal
import threading
from pathlib import Path

import pytest
import trustme

from strata import DatasetRegistry
from strata.rpc import RpcError, Status
from tests.coordinators import TOKEN
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator


def registered(registry: DatasetRegistry, seed: int = 0) -> int:
    made = registry.register("d", "/data/d", "parquet", total_samples=1005, shard_size=10, shuffle=True, seed=seed)
    return made.version


def answers(registry: DatasetRegistry) -> list[object]:
    return [registry.get_assignments("d", rank, epoch) for rank in range(3) for epoch in (0, 1, 6)]


@pytest.fixture
def own(own_coordinator: CoordinatorProcess, job: str) -> CoordinatorProcess:
    return own_coordinator


def test_a_coordinator_that_was_killed_knows_the_same_when_it_is_back(own: CoordinatorProcess, job: str) -> None:
    with Client(own.address, job) as client, DatasetRegistry(own.address) as registry:
        client.world(3)
        registered(registry)
        registered_twice = registry.register("e", "/data/e", "csv", total_samples=5, replace=True)
        before = answers(registry)
        assert registry.advance_epoch("d") == 1
        for _ in range(2):
            own.kill()
            own.start()
            assert answers(registry) == before
            assert registered(registry) == 1
            assert registry.register("e", "/data/e", "csv", total_samples=5) == registered_twice
        assert registry.advance_epoch("d", from_epoch=0) == 1  # the repeat of a call whose answer was lost
        with DatasetRegistry(own.address) as fresh:
            assert answers(fresh) == before
            assert fresh.get_assignments("d", 0)[0].epoch == 1


def test_a_coordinator_that_is_being_restarted_is_waited_for(own: CoordinatorProcess, job: str) -> None:
    with Client(own.address, job) as client, DatasetRegistry(own.address) as registry:
        client.world(3)
        registered(registry)
        before = answers(registry)
        own.kill()
        starting = threading.Timer(1.0, own.start, kwargs={"wait": False})
        starting.start()
        try:
            assert registry.advance_epoch("d") == 1
            assert answers(registry) == before
        finally:
            starting.join()


def test_one_that_does_not_come_back_is_given_up_by_name(own: CoordinatorProcess) -> None:
    with DatasetRegistry(own.address, timeout=1.0) as registry:
        registered(registry)
        own.signal(signal.SIGSTOP)
        with pytest.raises(RpcError, match=rf"at {own.address} did not answer ListDatasets within 1 s") as hung:
            registry.list()
        assert hung.value.status is Status.DEADLINE_EXCEEDED
        own.signal(signal.SIGCONT)
        assert len(registry.list()) == 1
        own.kill()
        with pytest.raises(RpcError, match=own.address) as gone:
            registered(registry, seed=1)
        assert gone.value.status is Status.UNAVAILABLE
        own.start()
        assert registered(registry) == 1


def test_of_several_addresses_the_one_that_answers(running: CoordinatorProcess, job: str) -> None:
    with DatasetRegistry(f"http://127.0.0.1:9,http://{running.address}") as registry:
        assert registered(registry) == 1


def test_a_token_is_shown(guarded: CoordinatorProcess, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with DatasetRegistry(guarded.address) as registry:
        with pytest.raises(RpcError, match=guarded.address) as refused:
            registered(registry)
        assert refused.value.status is Status.UNAUTHENTICATED
        assert TOKEN not in str(refused.value)
    monkeypatch.setenv("STRATA_TOKEN", TOKEN)
    with DatasetRegistry(guarded.address) as registry:
        assert registered(registry) == 1


def test_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    server.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    flags = ["--tls-certificate", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with coordinator(tmp_path, *flags) as process:
        monkeypatch.setenv("STRATA_TLS_CA", str(tmp_path / "ca.pem"))
        with DatasetRegistry(f"https://{process.address}") as registry:
            assert registered(registry) == 1
        with DatasetRegistry(process.address, timeout=1.0) as registry, pytest.raises(RpcError, match=process.address):
            registered(registry)
