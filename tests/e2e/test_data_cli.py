"""`strata data` from outside: a real coordinator, real files, what is printed and how it ends."""

import json
import os
import pty
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strata.errors import InvalidInput
from strata.v1 import coordinator_pb2 as pb
from tests.e2e.telling import STRATA, Told, lines, refusal, strata, strata_here
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

Data = Callable[..., Told]

files_only = partial(strata_here, "data")


@pytest.fixture
def data(client: Client, running: CoordinatorProcess) -> Data:
    """The command, on a job of the test's own."""
    return partial(strata_here, "data", COORDINATOR_URL=running.address, STRATA_JOB_ID=client.job)


@pytest.fixture
def process(data: Data) -> Data:
    """The same as a process of its own."""
    return partial(strata, *data.args, **data.keywords) if isinstance(data, partial) else data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "train"
    made.mkdir()
    for number, rows in enumerate([30, 0, 50, 20]):
        text = "".join(f"{row},word {row}\n" for row in range(rows))
        (made / f"part-{number}.csv").write_text(f"id,text\n{text}")
    (made / "README.md").write_text("no data")
    return made


def document(told: Told, code: int = 0) -> Any:
    assert told.returncode == code, told.stderr.decode()
    return json.loads(told.stdout)


def me(who: Any, **fields: Any) -> dict[str, Any]:
    return {"worker_id": who.worker_id, "incarnation": who.incarnation, "dataset_id": "images", **fields}


def consume(client: Client, who: Any, through: int, epoch: int = 0, **more: Any) -> None:
    now = client.call("GetAssignments", **me(who))
    there = {"version": 1, "epoch": epoch, "point": now.point, "generation": now.generation}
    client.call("ReportBatches", **me(who, **there, through=through, **more))


def seen(words: list[str | Path], **environment: str) -> str:
    """What a person sees on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    wanted = os.environ | environment | {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    told = b""
    try:
        with subprocess.Popen([STRATA, "data", *words], stdout=theirs, stderr=subprocess.PIPE, env=wanted) as process:
            os.close(theirs)
            try:
                with suppress(OSError):  # what a terminal says when nobody writes to it any more
                    while piece := os.read(ours, 65536):
                        told += piece
                _, wrong = process.communicate(timeout=60)
            finally:
                process.kill()
    finally:
        os.close(ours)
    assert not wrong, wrong
    return told.decode().replace("\r\n", "\n")


# -- the datasets of a job -------------------------------------------------------------------------------------------


def test_a_dataset_is_counted_registered_listed_and_taken_out(process: Data, folder: Path) -> None:
    assert "has no datasets" in lines(process("ls"))[0]
    (told,) = lines(process("register", "images", folder, "--format", "csv", "--shard-size", "7", "--shuffle"))
    assert told == "images is registered: version 1, epoch 0, 100 samples in 15 shards of 7"
    assert lines(process("register", "images", folder, "-f", "csv", "--shard-size", "7", "--shuffle")) == [told]
    head, row = lines(process("ls"))
    assert head.split() == ["dataset", "version", "samples", "shards", "epoch", "consumed", "format", "path"]
    assert row.split() == ["images", "1", "100", "15", "0", "────────", "0", "%", "csv", str(folder)]
    (listed,) = document(process("ls", "--json"))
    assert (listed["total_samples"], listed["shard_count"], listed["shuffle"]) == (100, 15, True)
    doubted = process("unregister", "images", answer=b"n\n")
    assert doubted.returncode == 1
    assert b"epoch 0 (0 % consumed)" in doubted.stderr
    assert "version 1 is gone" in lines(process("unregister", "images", "--yes"))[0]
    assert "no dataset 'images'" in refusal(process("unregister", "images", "--yes"))
    assert document(process("ls", "--json")) == []


def test_with_samples_nothing_need_be_there(data: Data) -> None:
    far = ("register", "far", "/nowhere/a", "/nowhere/b", "-f", "parquet")
    assert "--samples" in refusal(data(*far))
    made = document(data(*far, "--samples", "1000", "--json"))
    assert made == {
        "dataset_id": "far",
        "version": 1,
        "epoch": 0,
        "total_samples": 1000,
        "shard_size": 1,
        "shard_count": 1000,
    }
    assert document(data("ls", "--json"))[0]["path"] == ["/nowhere/a", "/nowhere/b"]


def test_a_number_that_not_every_reader_holds_is_refused(client: Client, data: Data) -> None:
    most = "must be at most 9007199254740991, not 9223372036854775807"
    lines(data("register", "small", "/d", "-f", "csv", "--samples", "10"))
    told = refusal(data("register", "huge", "/d", "-f", "csv", "--samples", "10", "--shard-size", str(2**63 - 1)))
    assert f"shard_size {most}" in told
    said: dict[str, Any] = {
        "dataset_id": "huge",
        "total_samples": 10,
        "shard_size": 2**63 - 1,
        "path": "/d",
        "format": "csv",
    }
    with pytest.raises(InvalidInput, match=f"shard_size {most}"):  # whoever asks without that command
        client.call("RegisterDataset", **said)
    assert [each["dataset_id"] for each in document(data("ls", "--json"))] == ["small"]


def test_what_differs_is_replaced_only_where_that_is_said(data: Data) -> None:
    lines(data("register", "images", "/d", "-f", "csv", "--samples", "10"))
    told = refusal(data("register", "images", "/d", "-f", "csv", "--samples", "11"))
    assert "total_samples was 10, is 11" in told
    assert "--replace" in told
    (said,) = lines(data("register", "images", "/d", "-f", "csv", "--samples", "11", "--replace"))
    assert "version 2, epoch 0, 11 samples" in said


def test_without_a_coordinator_it_says_where_it_looked() -> None:
    told = refusal(files_only("show", "images", "--coordinator", "127.0.0.1:1"))
    assert "127.0.0.1:1" in told
    assert "Is the coordinator running? See COORDINATOR_URL" in told


# -- who owns what ---------------------------------------------------------------------------------------------------


def test_shares_are_drawn_for_each_rank(client: Client, data: Data) -> None:
    lines(data("register", "images", "/d", "-f", "csv", "--samples", "95", "--shard-size", "10"))
    assert "nobody owns a shard yet" in lines(data("show", "images"))[-1]
    client.crew(3)
    told = lines(data("show", "images"))
    start = next(number for number, line in enumerate(told) if line.startswith("rank"))
    strips = [line.split()[-1] for line in told[start + 1 : start + 4]]
    assert [set(column) for column in zip(*strips, strict=True)] == [{"█", "·"}] * 10
    assert all(column.count("█") == 1 for column in zip(*strips, strict=True))
    assert any("balance: 3 to 4 shards over 3 ranks, the most 1.20 times the mean" in line for line in told)
    found = document(data("show", "images", "--json", "--ranks", "2"))
    assert (found["ranks"], len(found["owners"])) == (3, 2)
    for owner, strip in zip(found["owners"], strips, strict=False):
        assert sorted(owner["shard_ids"]) == [shard for shard, sign in enumerate(strip) if sign == "█"]
        assert owner["samples"] == sum(5 if shard == 9 else 10 for shard in owner["shard_ids"])
    assert "and 1 more rank: see --ranks" in lines(data("show", "images", "--ranks", "2"))


def test_each_epoch_is_read_in_an_order_of_its_own(client: Client, data: Data) -> None:
    lines(data("register", "images", "/d", "-f", "csv", "--samples", "90", "--shard-size", "10", "--shuffle"))
    client.crew(1)
    orders = [document(data("show", "images", "--epoch", epoch, "--json"))["owners"][0]["shard_ids"] for epoch in "12"]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(9))
    told = lines(data("show", "images", "--epoch", "2"))
    assert f"rank 0 reads in epoch 2: {', '.join(map(str, orders[1]))}" in told


def test_in_the_affinity_order_each_rank_has_its_part_of_the_epoch(client: Client, data: Data) -> None:
    first, second = client.crew(2)
    lines(
        data("register", "images", "/d", "-f", "csv", "--samples", "100", "--shard-size", "10", "--order", "affinity")
    )
    now = client.call("GetAssignments", **me(first))
    cursors = dict.fromkeys(now.granted, 10)
    client.call("ReportProgress", **me(first, version=1, epoch=0, point=now.point, cursors=cursors))
    mine, theirs = document(data("show", "images", "--json"))["owners"]
    assert (mine["consumed_samples"], theirs["consumed_samples"]) == (mine["samples"], 0)
    told = lines(data("show", "images"))
    own, other, consumed = (line.split()[-1] for line in told if "█" in line)
    assert own == consumed != other
    third = client.register("w2")
    told = lines(data("show", "images"))
    assert any("gives up" in line for line in told)
    assert (second.rank, third.rank) == (1, 2)


def test_everything_fits_a_terminal_of_80_columns(client: Client, data: Data, running: CoordinatorProcess) -> None:
    client.crew(2)
    client.register("a-worker-with-a-name-that-is-much-longer-than-it-would-need-to-be-0001")
    path = "/data/" + "/".join(["a-folder-of-some-depth"] * 6)
    for order in ("elastic", "affinity"):
        words = ("register", f"{order}-dataset-of-many-images", path, "-f", "parquet", "--samples", "1281167000")
        lines(data(*words, "--order", order))
    environment = {"COORDINATOR_URL": running.address, "STRATA_JOB_ID": client.job}
    assert f"elastic-dataset-of-many-images: {path}" in seen(["ls"], **environment)
    for shown in (["ls"], ["show", "elastic-dataset-of-many-images"], ["show", "affinity-dataset-of-many-images"]):
        told = [line for line in seen([*shown], **environment).splitlines() if path not in line]  # which wraps
        assert max(map(len, told)) <= 80, max(told, key=len)


# -- verify ----------------------------------------------------------------------------------------------------------


def test_an_epoch_is_proven_or_what_is_missing_is_named(client: Client, data: Data) -> None:
    lines(data("register", "images", "/d", "-f", "csv", "--samples", "100", "--shard-size", "10"))
    (who,) = client.crew(1)
    consume(client, who, 60)
    told = data("verify", "images")
    assert told.returncode == 1
    assert "✗ images, version 1, epoch 0 (not over yet): 40 of 100 samples are missing" in told.stdout.decode()
    assert "places 60 to 99: 40 samples" in told.stdout.decode()
    found = document(data("verify", "images", "--json"), 1)
    assert (found["proven"], found["missing"], found["missing_samples"]) == (False, [[60, 100]], 40)
    consume(client, who, 100)
    first, *rest = lines(data("verify", "images"))
    assert first == "✓ images, version 1, epoch 0 (over): all 100 samples are consumed, each once"
    assert "Proven:" in rest[0]
    assert "Not proven:" in rest[1]
    assert document(data("verify", "images", "--epoch", "1", "--json"), 1)["state"] == "running"
    client.call("AdvanceEpoch", dataset_id="images", from_epoch=1)
    found = document(data("verify", "images", "--json"), 1)
    assert (found["epoch"], found["missing"], found["missing_samples"]) == (1, None, 100)
    assert lines(data("verify", "images", "--epoch", "0"))[0] == first
    assert "has not begun" in refusal(data("verify", "images", "--epoch", "7"))
    assert "no dataset 'texts'" in refusal(data("verify", "texts"))


def test_a_tail_that_is_dropped_is_part_of_the_proof(client: Client, data: Data) -> None:
    lines(data("register", "images", "/d", "-f", "csv", "--samples", "1030", "--shard-size", "10"))
    (who,) = client.crew(1)
    consume(client, who, 900, reading="global_batch_size=100, tail=drop")
    found = document(data("verify", "images", "--json"), 1)
    assert (found["missing"], found["missing_samples"], found["dropped_samples"]) == ([[900, 1000]], 100, 30)
    consume(client, who, 1000, reading="global_batch_size=100, tail=drop", over=True)
    first, second, *_ = lines(data("verify", "images"))
    assert first == (
        "✓ images, version 1, epoch 0 (over): 1,000 of 1,030 samples, all but the tail, are consumed, each once"
    )
    assert second.strip() == '30 samples that fill no batch: dropped, by tail="drop"'
    found = document(data("verify", "images", "--json"))
    assert (found["proven"], found["missing_samples"], found["dropped_samples"]) == (True, 0, 30)
    assert found["unproven_epochs"] == []
    assert "  epoch 0 over: every sample once, but for tails that were dropped" in lines(data("show", "images"))


def test_samples_that_were_damaged_and_left_out_are_told(client: Client, data: Data) -> None:
    lines(data("register", "images", "/d", "-f", "csv", "--samples", "400000", "--shard-size", "1000"))
    (who,) = client.crew(1)
    consume(client, who, 100_000, left_out={100_000: 10_000})
    told = data("verify", "images")
    assert told.returncode == 1
    assert told.stdout.decode().splitlines()[0] == (
        "✗ images, version 1, epoch 0 (not over yet): 300,000 of 400,000 samples are missing, and 10,000 were damaged "
        "and left out: nobody was given them"
    )
    assert "  100,000 reported, 10,000 of them damaged and left out, 300,000 left" in lines(data("show", "images"))
    assert document(data("ls", "--json"))[0]["left_out_samples"] == 10_000
    consume(client, who, 400_000, left_out={400_000: 40_000})
    told = data("verify", "images")
    assert told.returncode == 3
    assert told.stdout.decode().splitlines()[0] == (
        "✗ images, version 1, epoch 0 (over): 350,000 of 400,000 samples were given out, each once; 50,000 were "
        "damaged and left out: nobody was given them"
    )
    found = document(data("verify", "images", "--json"), 3)
    assert (found["proven"], found["consumed_samples"], found["missing_samples"]) == (False, 400_000, 0)
    assert (found["given_out_samples"], found["left_out_samples"]) == (350_000, 50_000)
    assert found["unproven_epochs"] == [0]
    assert "  epoch 0 over: not proven: 0 (50,000 damaged and left out)" in lines(data("show", "images"))


def test_epochs_that_ended_unheard_are_named(client: Client, data: Data) -> None:
    """The coordinator was away meanwhile, and everybody goes on from a checkpoint behind them."""
    lines(data("register", "images", "/d", "-f", "csv", "--samples", "100", "--shard-size", "10"))
    who = client.register("w0", rank=0, world_size=1)
    me_ = {"worker_id": "w0", "incarnation": who.incarnation}
    client.call("Recover", **me_)
    consume(client, who, 100)
    assert "  epoch 0 over: every sample once" in lines(data("show", "images"))
    where = pb.DataPosition(version=1, epoch=2)
    found = pb.Found(step=7, epoch=2, place="step_7", positions={"images": where})
    client.call("Recover", **me_, found=found, insist=True)
    consume(client, who, 100, epoch=2)
    told = lines(data("show", "images"))
    assert "  epochs 0 to 2 over: not proven: 1 (nothing was reported)" in told
    assert document(data("show", "images", "--json"))["unproven_epochs"] == [1]
    first, second, *_ = lines(data("verify", "images"))
    assert first == "✓ images, version 1, epoch 2 (over): all 100 samples are consumed, each once"
    assert second == "! of the epochs that are over, not proven: 1 (nothing was reported)"
    assert document(data("verify", "images", "--json"))["unproven_epochs"] == [1]
    assert "it has epochs 0, 2, and 3" in refusal(data("verify", "images", "--epoch", "1"))


def test_what_a_lost_worker_may_have_read_is_said(client: Client, data: Data) -> None:
    first, second = client.crew(2)
    lines(
        data("register", "images", "/d", "-f", "csv", "--samples", "100", "--shard-size", "10", "--order", "affinity")
    )
    client.call("Deregister", worker_id="w1", incarnation=second.incarnation)
    now = client.call("GetAssignments", **me(first))
    cursors = dict.fromkeys(now.granted, 10)
    assert len(cursors) == 10
    client.call("ReportProgress", **me(first, version=1, epoch=0, point=now.point, cursors=cursors))
    told = lines(data("verify", "images"))
    assert "all 100 samples are consumed, each once" in told[0]
    assert "samples were given out again since a worker was lost" in told[2]


def test_a_ledger_outlives_the_coordinator(tmp_path: Path) -> None:
    with coordinator(tmp_path) as process, Client(process.address, "j") as client:
        client.call("RegisterDataset", dataset_id="images", total_samples=100, shard_size=10, path="/d", format="csv")
        (who,) = client.crew(1)
        consume(client, who, 100)
        consume(client, who, 30, epoch=1)
        process.kill()
        process.start()
        there = partial(
            strata, "data", "verify", "images", "--json", COORDINATOR_URL=process.address, STRATA_JOB_ID="j"
        )
        assert document(there())["proven"]
        assert document(there("--epoch", "1"), 1)["missing"] == [[30, 100]]


# -- files -----------------------------------------------------------------------------------------------------------


def test_an_index_is_made_and_says_what_it_found(folder: Path) -> None:
    told = lines(files_only("index", folder, "-f", "csv"))
    assert told[0].startswith("csv: 100 samples in 4 files")
    assert "1 empty one among them" in told[0]
    assert "3 blocks of 20 to 50 samples" in told[1]
    assert [line.split() for line in told[2:5]] == [["column", "type"], ["id", "int64"], ["text", "string"]]
    assert told[-1] == f"saved as {folder}/.strata-index"
    found = document(files_only("index", folder, "-f", "csv", "--out", folder.parent / "ix", "--json"))
    assert (found["rows"], found["files"], found["empty_files"], found["block_rows"]) == (100, 4, 1, [20, 50])
    assert f"fingerprint {found['fingerprint'].partition('.')[0]}" in told
    assert (folder.parent / "ix").read_bytes() == (folder / ".strata-index").read_bytes()


def test_what_changed_since_is_told(folder: Path) -> None:
    lines(files_only("index", folder, "-f", "csv"))
    assert lines(files_only("check", folder)) == ["4 files indexed: all as they were"]
    (folder / "part-0.csv").write_text("id,text\n1,other\n")
    (folder / "part-3.csv").unlink()
    (folder / "part-9.csv").write_text("id,text\n")
    for place in (folder, folder / ".strata-index"):
        found = document(files_only("check", place, "--json"), 1)
        kinds = {Path(each["path"]).name: each["change"] for each in found["changes"]}
        assert kinds == {"part-0.csv": "changed", "part-3.csv": "missing", "part-9.csv": "added"}
    told = files_only("check", folder)
    assert told.returncode == 1
    assert "4 files indexed: 1 changed, 1 missing, 1 added" in told.stdout.decode()
    for file in folder.glob("*.*"):
        if not file.name.startswith("."):
            file.unlink()
    assert len(document(files_only("check", folder, "--json"), 1)["changes"]) == 4


def test_an_index_elsewhere_knows_its_own_files(folder: Path) -> None:
    pattern, place = f"{folder}/part-[02].csv", folder.parent / "some.index"
    assert "--out" in refusal(files_only("index", pattern, "-f", "csv"))
    lines(files_only("index", pattern, "-f", "csv", "--out", place))
    assert "all as they were (added ones are not looked for" in lines(files_only("check", place))[0]
    assert lines(files_only("check", place, "--path", pattern)) == ["2 files indexed: all as they were"]
    shutil.rmtree(folder)
    found = document(files_only("check", place, "--json"), 1)
    assert [each["change"] for each in found["changes"]] == ["missing", "missing"]
    assert "is no index" in refusal(files_only("check", folder))


def test_one_file_has_its_index_beside_it(folder: Path) -> None:
    lines(files_only("index", "part-2.csv", "-f", "csv", cwd=folder))
    assert (folder / ".part-2.csv.strata-index").exists()
    assert lines(files_only("check", "part-2.csv", cwd=folder)) == ["1 file indexed: all as they were"]
    assert "is no index" in refusal(files_only("check", "part-0.csv", cwd=folder))
    url = f"file://{folder}/part-3.csv"
    assert lines(files_only("index", url, "-f", "csv"))[-1] == f"saved as {folder}/.part-3.csv.strata-index"
    assert lines(files_only("check", url)) == ["1 file indexed: all as they were"]


def test_a_damaged_index_is_told(folder: Path) -> None:
    lines(files_only("index", folder, "-f", "csv"))
    place = folder / ".strata-index"
    place.write_bytes(place.read_bytes()[:-3])
    assert "is not a whole index" in refusal(files_only("check", folder))
    place.write_bytes(b"STR")
    assert "has none beside it" in refusal(files_only("check", folder))


def test_data_that_cannot_be_read_is_an_error_with_its_name(folder: Path) -> None:
    assert "'cvs' is not a format" in refusal(files_only("index", folder, "-f", "cvs"))
    (folder / "part-2.csv").write_text("id,text\n1,2,3\n")
    assert "part-2.csv" in refusal(files_only("index", folder, "-f", "csv"))
    assert not (folder / ".strata-index").exists()


def test_reading_is_measured(folder: Path) -> None:
    found = document(strata("data", "bench", folder, "-f", "csv", "--batch-size", "8", "--json"))
    assert (found["rows"], found["batches"], found["dataset_rows"]) == (96, 12, 100)
    assert 0 < found["first_batch_seconds"] <= found["seconds"]
    assert found["rows_per_s"] > 0
    told = lines(files_only("bench", folder, "-f", "csv", "--batch-size", "8", "--column", "id", "--in-order"))
    assert [line.split()[0] for line in told] == ["dataset", "indexing", "first", "batches", "samples", "bytes"]
    again = document(files_only("bench", folder, "-f", "csv", "--batch-size", "8", "--seconds", "0.3", "--json"))
    assert again["rows"] > 100
    assert "smaller --batch-size" in refusal(files_only("bench", folder, "-f", "csv", "--batch-size", "101"))
    assert "no columns ['nope']" in refusal(
        files_only("bench", folder, "-f", "csv", "--batch-size", "8", "--column", "nope")
    )
