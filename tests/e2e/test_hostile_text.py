"""Every command of the command line, over names, reasons and metadata that were written to break a terminal."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import pytest

from strata import CheckpointManager
from strata.cli import app, ckpt, data
from strata.cli.lazy import Commands, load
from strata.coordinator.journal import Journal
from strata.core.records import Record
from tests.e2e.telling import Told, strata_here
from tests.servers.coordinator import CoordinatorProcess, coordinator
from tests.unit.core.test_replay_hashseed import scenario

MARKUP = "[/__w/gloo/tcp/pair.cc:553] [red]Connection[/red] :smile: closed"
OBEYED = "\x1b[2J\x1b]0;title\x07\r\x00\x7f\x9b2J\u202egnp\u2066\u200f\u2028\nforged: a line of its own\n"
HOSTILE = MARKUP + OBEYED
FILE = HOSTILE.replace("/", "|").replace("\x00", "")
"""The same as a file may be called."""
KEY = MARKUP.replace("/", "|") + "\u202egnp\u2066\u200f\u2028"
"""The same as an object may be called: a storage takes no control characters in keys."""
STARTED: set[str] = set()
"""Commands that a test here ran."""

pytestmark = pytest.mark.xdist_group("hostile text")  # the last test looks at what the others ran

T = TypeVar("T")


LAZY = {"ckpt": ckpt.COMMANDS, "data": data.COMMANDS}


def listed(table: Commands, path: str = "") -> Iterator[str]:
    for name, command in table.items():
        inner = f"{path} {name}".strip()
        yield from listed(LAZY[inner], inner) if inner in LAZY else commands(load(command.place, name), inner)


def commands(each: Any, path: str) -> Iterator[str]:
    inside = getattr(each, "commands", {})
    for name, command in inside.items():
        yield from commands(command, f"{path} {name}")
    if not inside or each.invoke_without_command:
        yield path


ALL = set(listed(app.COMMANDS))


def run(command: str, *arguments: str | Path, status: int = 0, **environment: Any) -> str:
    """What it says, which nothing in the data could shape."""
    STARTED.add(command)
    told = strata_here(*command.split(), *arguments, answer=b"n\n", **environment)
    assert told.returncode == status, told.stderr.decode()
    return checked(told)


def checked(told: Told) -> str:
    said = told.stdout.decode() + told.stderr.decode()
    assert [each for each in said if not each.isprintable() and each != "\n"] == []
    assert "forged: a line of its own" not in said.splitlines()
    return said


def documents(command: str, *arguments: str | Path, status: int = 0, **environment: Any) -> Any:
    said = run(command, *arguments, "--json", status=status, **environment)
    assert said.isascii()
    return json.loads(said)


# -- what an old journal holds -----------------------------------------------------------------------------------------


def hostile(value: T, keep: frozenset[str], field: str = "") -> T:
    """The same value with hostile text at the end of each text in it, but for what must be one of a few words."""
    if isinstance(value, str):
        told = bool(value) or field in EMPTY
        return cast(T, value + HOSTILE) if told and field not in keep and value not in keep else value
    if isinstance(value, dict):
        return cast(T, {hostile(name, keep): hostile(each, keep, field) for name, each in value.items()})
    if isinstance(value, list | tuple):
        return cast(T, type(value)(hostile(each, keep, field) for each in value))
    if isinstance(value, msgspec.Struct):
        kept = {name: hostile(getattr(value, name), keep, name) for name in value.__struct_fields__}
        return cast(T, type(value)(**kept))
    return value


WORDS = frozenset(("cause", "strategy", "order", "best_mode", "barriers", "recovery", "saves", "situation", "digest"))
EMPTY = frozenset(("path", "format", "ip", "fingerprint", "columns"))
"""Texts that the day in the journal has no need of."""
METRICS = frozenset(("loss", "0.5", "0.25", "0.75"))


def journal_of(folder: Path) -> None:
    """One job whose names are sound, and another in which they are hostile as well."""
    records = scenario().records
    names = {value for each in records for value in texts_of(each, ("worker", "dataset", "barrier", "job", "nonce"))}
    numbers = {value for each in records for value in getattr(each, "metrics", {}).values()}
    sound = [hostile(each, WORDS | METRICS | (names - {""}) | numbers) for each in records]
    other = [hostile(each, WORDS | METRICS | numbers) for each in records if hasattr(each, "job")]
    journal = Journal(folder)
    journal.append(0, 1, [*sound, *other])
    journal.close()


def texts_of(record: Record, fields: tuple[str, ...]) -> Iterator[str]:
    yield from (value for field in fields if isinstance(value := getattr(record, field, None), str))
    yield from (name for name in getattr(record, "positions", {}))
    yield from (name for name in getattr(record, "arrivals", {}))
    yield from (worker for worker, _ in getattr(record, "participants", {}).values())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    journal_of(folder / "state")
    with coordinator(folder, "--lease-seconds", "600") as process:
        yield process


@pytest.fixture
def at(running: CoordinatorProcess) -> dict[str, Any]:
    return {
        "COORDINATOR_URL": running.address,
        "STRATA_HTTP_PORT": running.http.rpartition(":")[2],
        "STRATA_JOB_ID": scenario().job.job,
    }


@pytest.mark.parametrize("command", ["status", "workers", "barriers"])
def test_what_a_coordinator_shows(at: dict[str, Any], command: str) -> None:
    said = run(command, **at)
    assert said
    documents(command, **at)


def test_reasons_and_addresses_of_workers(at: dict[str, Any]) -> None:
    assert "[/__w" in run("workers", **at)
    (first, *_) = documents("workers", "--job", at["STRATA_JOB_ID"], **at)
    assert first["reason"].endswith(HOSTILE)  # a program is told what was said
    assert all(name.endswith(HOSTILE) for each in documents("workers", **at) for name in each["metadata"])


def test_events(at: dict[str, Any]) -> None:
    said = run("events", "--limit", "1000", **at)
    assert MARKUP in said
    STARTED.add("events")
    told = strata_here("events", "--limit", "1000", "--json", **at)
    events = [json.loads(line) for line in checked(told).splitlines()]
    assert len(events) > 20


@pytest.mark.parametrize("command", ["data ls", "data show", "data verify", "data unregister"])
def test_datasets_of_a_job(at: dict[str, Any], command: str) -> None:
    named = () if command == "data ls" else ("images",)
    status = 1 if command in ("data verify", "data unregister") else 0
    said = run(command, *named, status=status, **at)
    assert command not in ("data ls", "data show") or MARKUP[:20] in said
    if command != "data unregister":
        documents(command, *named, status=status, **at)


def test_a_dataset_is_replaced(at: dict[str, Any]) -> None:
    there = ("texts", "/nowhere", "-f", "csv", "--samples", "10")
    run("data register", *there, status=2, **at)
    run("data register", HOSTILE, "/nowhere", "-f", "csv", "--samples", "10", status=2, **at)
    run("data register", "other", "/nowhere" + HOSTILE, "-f", HOSTILE, "--samples", "10", status=2, **at)


@pytest.mark.parametrize("command", ["job checkpoint", "job stop", "job drain"])
def test_what_an_operator_says(at: dict[str, Any], command: str) -> None:
    names = (HOSTILE, HOSTILE) if command == "job drain" else (HOSTILE,)
    run(command, *names, "--reason", HOSTILE, status=2, **{**at, "STRATA_JOB_ID": "x"})


def test_a_journal_on_the_disk(running: CoordinatorProcess, tmp_path: Path) -> None:
    there = ("--state-dir", running.state_dir)
    assert MARKUP in run("state show", *there)
    documents("state show", *there)
    documents("state show", *there, "--job", scenario().job.job)
    saved = tmp_path / FILE
    run("state backup", saved, *there)
    run("state restore", saved, "--state-dir", tmp_path / f"state{FILE}")
    run("state restore", saved, "--state-dir", tmp_path / f"state{FILE}", status=2)
    run("state salvage", "--state-dir", tmp_path / f"state{FILE}", status=2)


def test_a_coordinator_that_does_not_start(tmp_path: Path) -> None:
    run("coordinator", HOSTILE.replace("\x00", ""), status=2)
    run("coordinator", "127.0.0.1:0", "--config", tmp_path / FILE, status=2)


def test_what_a_coordinator_writes_to_its_terminal_and_log(running: CoordinatorProcess) -> None:
    log = running.log.read_text("utf-8")
    assert [each for each in log if not each.isprintable() and each != "\n"] == []


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings(tmp_path: Path) -> None:
    said = run("config", STRATA_JOB_ID=HOSTILE.replace("\x00", ""), STRATA_TLS_CA=MARKUP)
    assert MARKUP in said
    documents("config", STRATA_JOB_ID=HOSTILE.replace("\x00", ""))
    file = tmp_path / FILE
    file.write_text(f"{json.dumps(HOSTILE)} = 1")
    run("config", "--config", file, status=2)


def test_help_says_what_is_in_brackets() -> None:
    assert "[strata.toml]" in run("config", "--help")


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("checkpoints") / FILE
    with CheckpointManager(root, job_id="j") as manager:
        for step in (1, 2, 3):
            state = {HOSTILE: np.full(4, step), "said": {HOSTILE: f"{HOSTILE}{step}"}, "kept": np.ones(3)}
            manager.save(state, step=step, metrics={MARKUP: 0.5 + step})
    with CheckpointManager(root, job_id="damaged") as manager:
        manager.save({HOSTILE: np.ones(3)}, step=1)
    for file in (root / "damaged").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-4])
    return str(root)


@pytest.mark.parametrize(
    ("command", "words", "shown"),
    [
        ("ckpt ls", ("--all",), True),
        ("ckpt show", (), True),
        ("ckpt verify", (), False),
        ("ckpt diff", ("1", "2"), True),
    ],
)
def test_checkpoints(saved: str, command: str, words: tuple[str, ...], shown: bool) -> None:
    said = run(command, saved, *words, "--job", "j")
    assert not shown or "[red]" in said.replace("\n", "")
    documents(command, saved, *words, "--job", "j")


def test_a_damaged_checkpoint(saved: str) -> None:
    run("ckpt verify", saved, "--job", "damaged", status=1)
    run("ckpt ls", saved, "--job", HOSTILE, status=2)
    run("ckpt show", saved, HOSTILE, "--job", "j", status=2)


def test_checkpoints_that_are_kept_and_removed(saved: str, tmp_path: Path) -> None:
    copied = tmp_path / FILE
    run("ckpt cp", saved, copied, "--all", "--job", "j")
    run("ckpt pin", copied, "1")
    run("ckpt unpin", copied, "1")
    run("ckpt rm", copied, "1", status=1)
    run("ckpt rm", copied, "1", "--yes")
    run("ckpt rollback", copied, "--to", "2", status=1)
    documents("ckpt rollback", copied, "--to", "2", "--yes")
    run("ckpt rollback", copied, "--to", "2", "--yes")


def test_checkpoints_of_other_formats(saved: str, tmp_path: Path) -> None:
    run("ckpt export safetensors", saved, tmp_path / FILE / "x.safetensors", "--job", "j")
    run("ckpt import", tmp_path / FILE / "x.safetensors", tmp_path / FILE, "--step", "1", "--arrays", "numpy")
    run("ckpt export hf", saved, tmp_path / f"hf{FILE}", "--job", "j", status=2)
    run("ckpt export dcp", saved, tmp_path / f"dcp{FILE}", "--job", "j")


# -- storages and files ------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / FILE
    folder.mkdir()
    for name in (f"{FILE}.csv", f"{FILE}2.csv", KEY):
        (folder / name).write_text(f'id,"{HOSTILE.replace(chr(0), "")}"\n1,a\n2,b\n')
    return folder


def test_storages(files: Path) -> None:
    assert "[red]" in run("storage ls", files)
    documents("storage ls", files)
    documents("storage check", files)
    run("storage check", files)
    run("storage cp", files / FILE, files / "x", status=2)
    run("storage cp", files / KEY, files / "x")
    run("storage cp", files / "there is none", files / "y", status=2)
    run("storage rm", "-r", files, status=2)
    (files.parent / KEY).mkdir()
    run("storage cp", files / KEY, files.parent / KEY / "x")
    run("storage rm", "-r", files.parent / KEY, status=1)
    run("storage rm", files / KEY)


def test_an_object_is_written_out_as_it_is(files: Path) -> None:
    STARTED.add("storage cat")
    file = files / KEY
    assert strata_here("storage", "cat", file).stdout == file.read_bytes()


def test_files_of_a_dataset(files: Path, tmp_path: Path) -> None:
    index = tmp_path / f"index{KEY}"
    assert "[red]" in run("data index", files, "-f", "csv", "-o", index)
    documents("data index", files, "-f", "csv", "-o", index)
    run("data index", files, "-f", HOSTILE.replace("\x00", ""), status=2)
    run("data bench", files, "-f", "csv", "--batch-size", "2")
    documents("data bench", files, "-f", "csv", "--batch-size", "2")
    (files / f"{FILE}2.csv").write_text("id\n1\n2\n")
    (files / f"{FILE}.csv").unlink()
    said = run("data check", index, status=1)
    assert "[red]" in said
    documents("data check", index, status=1)
    run("data check", files, status=2)


def test_plans_of_simulations(tmp_path: Path) -> None:
    plan = tmp_path / FILE
    plan.write_text(json.dumps(HOSTILE))
    run("simulate", "--replay", plan, status=2)
    STARTED.add("simulate saves")
    assert strata_here("simulate", "saves", "--seeds", "2", "--seconds", "1", "--processes", "1").returncode == 0


def test_every_command_was_tried() -> None:
    """But for the demo, which shows nothing but what it started itself."""
    assert {"demo"} == ALL - STARTED
