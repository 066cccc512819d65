"""Who cannot come to a coordinator says so soon."""

import logging
import socket
from pathlib import Path

import pytest

from strata.errors import InvalidInput
from strata.rpc import RpcError, Status
from strata.session import reaching
from strata.worker.orchestrator import TrainingOrchestrator
from strata.worker.settings import OrchestratorConfig
from tests.servers.coordinator import coordinator


def register(url: str, seconds: float) -> None:
    config = OrchestratorConfig(register_seconds=seconds, helper=False)
    TrainingOrchestrator("w0", url, 1, 0, job_id="far", config=config).blocking.register_worker()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_an_address_that_does_not_answer_is_told_of_within_seconds(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RpcError, match=f"coordinator at {address} does not answer"):
            register(f"http://{address}", 5.0)
    (told,) = warnings(caplog)
    assert f"the coordinator at {address} does not answer" in told
    assert "worker 'w0'" in told
    assert "tries for 5 s" in told


def test_a_name_that_nobody_knows_is_told_of_and_soon_an_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"SAY_SECONDS": 0.5, "AGAIN_SECONDS": 0.5, "NAME_SECONDS": 1.5}.items():
        monkeypatch.setattr(reaching, name, seconds)
    with pytest.raises(InvalidInput, match=r"the name 'coordinater.invalid' cannot be resolved .*COORDINATOR_URL"):
        register("coordinater.invalid:50051", 3600.0)
    assert "the name 'coordinater.invalid' cannot be resolved" in warnings(caplog)[0]


def test_one_name_of_several_that_nobody_knows_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SAY_SECONDS", "AGAIN_SECONDS", "NAME_SECONDS"):
        monkeypatch.setattr(reaching, name, 0.2)
    with pytest.raises(RpcError, match="does not answer"):
        register("coordinater.invalid:50051,127.0.0.1:1", 2.0)


@pytest.mark.parametrize("token", ["", "another"])
def test_a_token_that_is_refused_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("STRATA_TOKEN", token)
    with (
        coordinator(tmp_path, environment={"STRATA_TOKEN": "the-right-one"}) as process,
        pytest.raises(RpcError, match="set STRATA_TOKEN to the coordinator's") as refused,
    ):
        register(process.address, 3600.0)
    assert refused.value.status is Status.UNAUTHENTICATED
