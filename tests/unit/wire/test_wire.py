"""The wire contract: errors come back as what they were, addresses mean what people mean, and nothing breaks it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata.errors import (
    BarrierFailed,
    Conflict,
    Expired,
    InvalidInput,
    NotFound,
    NotRegistered,
    Refused,
    StaleGeneration,
    StrataError,
    Superseded,
)
from strata.rpc import RpcError, Status
from strata.v1 import coordinator_pb2 as pb
from strata.wire.addresses import parse_url
from strata.wire.errors import from_rpc, to_rpc
from strata.wire.remotes import remote, request_for

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("bad"),
        NotFound("none"),
        NotRegistered("who?"),
        Conflict("taken"),
        Refused("no"),
        Refused("not yet", retry=True),
        Superseded("stop"),
        Expired("again"),
        StaleGeneration("moved on", generation=7),
        BarrierFailed("missing", missing=["a", "b, c"]),
    ],
)
def test_an_error_comes_back_as_what_it_was(error: StrataError) -> None:
    back = from_rpc(to_rpc(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert back.retry == error.retry


def test_what_is_not_ours_stays_what_it_is() -> None:
    error = RpcError(Status.UNAVAILABLE, "no route")
    assert from_rpc(error) is error
    assert to_rpc(error) is error


def test_long_lists_and_messages_still_fit_a_header() -> None:
    error = BarrierFailed("x" * 100_000, missing=[f"worker-{number}" for number in range(10_000)])
    sent = to_rpc(error)
    assert len(sent.details) + len(sent.message) < 8000
    back = from_rpc(sent)
    assert isinstance(back, BarrierFailed)
    assert back.missing[0] == "worker-0"


@pytest.mark.parametrize(
    ("url", "addresses", "tls"),
    [
        ("localhost:50051", ("localhost:50051",), False),
        ("http://localhost:50051", ("localhost:50051",), False),
        ("http://localhost:50051/", ("localhost:50051",), False),
        ("https://strata.example:443", ("strata.example:443",), True),
        ("coordinator", ("coordinator:50051",), False),
        ("a:1, b:2,c", ("a:1", "b:2", "c:50051"), False),
        ("[::1]:50051", ("[::1]:50051",), False),
        ("unix:/run/strata.sock", ("unix:/run/strata.sock",), False),
    ],
)
def test_addresses_mean_what_people_mean(url: str, addresses: tuple[str, ...], tls: bool) -> None:
    found = parse_url(url)
    assert (found.addresses, found.tls) == (addresses, tls)


@pytest.mark.parametrize(
    "url",
    [
        "",
        ",",
        "a:1,,b:2",
        "ftp://a:1",
        "http://",
        "http://a:99999",
        "http://a:1/path",
        "http://me:pw@a:1",
        "https://a,b",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        parse_url(url)


def test_every_method_can_be_called_by_its_name() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Coordinator"].methods_by_name
    assert len(methods) > 25
    for name in methods:
        assert remote(name).path == f"/strata.v1.Coordinator/{name}"


def test_every_request_names_its_job() -> None:
    for name, method in pb.DESCRIPTOR.services_by_name["Coordinator"].methods_by_name.items():
        assert "job_id" in method.input_type.fields_by_name, name


def test_the_messages_are_in_step_with_the_contract(tmp_path: Path) -> None:
    """If this fails: `make proto`, and commit what it wrote."""
    pytest.importorskip("grpc_tools", reason="missing component: grpcio-tools")
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto")),
            f"--descriptor_set_out={tmp_path / 'coordinator.binpb'}",
            f"--pyi_out={tmp_path}",
            "strata/v1/coordinator.proto",
        ],
        check=True,
    )
    kept = ROOT / "src" / "strata" / "v1"
    assert (tmp_path / "coordinator.binpb").read_bytes() == (kept / "coordinator.binpb").read_bytes()
    made = tmp_path / "strata" / "v1" / "coordinator_pb2.pyi"
    assert made.read_text("utf-8") == (kept / "coordinator_pb2.pyi").read_text("utf-8")


def _buf() -> str:
    found = Path(sys.prefix) / "servers" / "node_modules" / ".bin" / "buf"
    if not found.exists():
        pytest.skip("missing component: buf (make test sets it up where there is npm)")
    return str(found)


def _run_buf(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BUF_CACHE_DIR": str(cache)}
    return subprocess.run([_buf(), *arguments], capture_output=True, text=True, env=environment, check=False)


def test_the_contract_is_well_formed(tmp_path: Path) -> None:
    told = _run_buf(tmp_path / "cache", "lint", str(ROOT / "proto"))
    assert told.returncode == 0, told.stdout + told.stderr


def test_nothing_that_was_released_is_broken(tmp_path: Path) -> None:
    """`proto/released.binpb` is the contract as users have it. A new release replaces it; nothing else does."""
    released = str(ROOT / "proto" / "released.binpb")
    told = _run_buf(tmp_path / "cache", "breaking", str(ROOT / "proto"), "--against", released)
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_breaking_change_is_caught(tmp_path: Path) -> None:
    proto = tmp_path / "proto"
    (proto / "strata" / "v1").mkdir(parents=True)
    (proto / "buf.yaml").write_text((ROOT / "proto" / "buf.yaml").read_text("utf-8"))
    contract = (ROOT / "proto" / "strata" / "v1" / "coordinator.proto").read_text("utf-8")
    broken = contract.replace("int64 incarnation = 3;\n  string reason = 4;", "string reason = 3;", 1)
    assert broken != contract
    (proto / "strata" / "v1" / "coordinator.proto").write_text(broken)
    told = _run_buf(tmp_path / "cache", "breaking", str(proto), "--against", str(ROOT / "proto" / "released.binpb"))
    assert told.returncode != 0
    assert "incarnation" in told.stdout


def test_what_people_read_is_sent_whatever_it_holds() -> None:
    half = "cannot open /data/caf\udce9"
    assert request_for("Deregister", job_id="j", reason=half).reason == r"cannot open /data/caf\udce9"
    registration = request_for("Register", job_id="j", metadata={"file": half})
    assert dict(registration.metadata) == {"file": r"cannot open /data/caf\udce9"}
    with pytest.raises(InvalidInput, match=r"^path is not valid text: '/data/caf\\udce9'"):
        request_for("RegisterDataset", job_id="j", path="/data/caf\udce9", format="csv")


def test_errors_travel_on_one_line() -> None:
    said = "worker 'a' has left: [/x]\x1b[2J\nforged\u202e"
    sent = to_rpc(Expired(said))
    assert sent.message == r"worker 'a' has left: [/x]\x1b[2J\nforged\u202e"
    assert str(from_rpc(RpcError(sent.status, said, details=sent.details))) == sent.message
