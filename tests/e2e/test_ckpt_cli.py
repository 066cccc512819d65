"""`strata ckpt` on local folders: its output and its exit code, and processes of it where only a process will do."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from strata import CheckpointManager, PerRank, Replicated
from tests.e2e.telling import Told, lines, refusal, strata_here, terminated_while_it_copies
from tests.unit.checkpoint.crews import Crew

ckpt = partial(strata_here, "ckpt")


def document(told: Told, code: int = 0) -> Any:
    assert told.returncode == code, told.stderr.decode()
    return json.loads(told.stdout)


def state(step: int) -> dict[str, Any]:
    embedding = torch.arange(4096.0).reshape(64, 64)
    return {
        "model": {"embed.weight": embedding, "head.weight": embedding, "bias": torch.full((8,), step).bfloat16()},
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(64, 64)}}, "lr": 0.1 / step},
        "step": step,
        "note": "plain \x1b[31m[red]text",
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Steps 10 and 20; then back to 10, which is pinned, and on with 20 again and 30, writing only what changed."""
    with CheckpointManager(tmp_path / "root", job_id="gpt") as manager:
        for step in (10, 20):
            manager.save(state(step), step=step, epoch=1, metrics={"loss": 1 / step})
        manager.pin(10)
    with CheckpointManager(tmp_path / "root", job_id="gpt", incremental=True) as manager:
        manager.load(10)
        manager.save(state(25), step=20, epoch=2, metrics={"loss": float("nan")})
        manager.save(state(30), step=30, epoch=2)
    return tmp_path / "root"


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def the_file(root: Path, folder: str, ending: str) -> Path:
    (found,) = (root / "gpt/checkpoints" / folder).glob(f"part-*{ending}")
    return found


# -- ls --------------------------------------------------------------------------------------------------------------


def test_ls_shows_the_line_and_says_what_is_left_behind(root: Path) -> None:
    head, ten, twenty, thirty, more = lines(ckpt("ls", root))
    assert head.split() == ["step", "epoch", "saved", "size", "written", "referred", "tensors", "ranks", "metrics"]
    assert ten.split()[0] == "10"
    assert ten.split()[-1] == "pinned"
    assert "32.0 KiB  32.0 KiB" in ten
    assert "loss 0.1" in ten
    assert twenty.split()[:2] == ["20-2", "2"]
    assert "loss nan" in twenty
    assert "32.0 KiB      16 B  32.0 KiB" in thirty
    assert thirty.rstrip().endswith("latest")
    assert more == "1 checkpoint left behind: see --all"


def test_a_tensor_of_which_ranks_have_pieces_is_one_and_ranks_are_told(tmp_path: Path) -> None:
    root = of_ranks(tmp_path)
    (told,) = document(ckpt("ls", "--json", root))["checkpoints"]
    assert (told["tensors"], told["ranks"]) == (3, 3)
    head, row = lines(ckpt("ls", root))
    place = head.index("tensors")
    assert row[place : head.index("ranks") + 5].split() == ["3", "3"]
    assert "in 3 tensors, of 3 ranks" in "\n".join(lines(ckpt("show", root)))


def test_ls_all_shows_what_was_left_behind(root: Path) -> None:
    told = lines(ckpt("ls", "--all", root))
    assert [line.split()[0] for line in told] == ["step", "10", "20", "20-2", "30"]
    assert told[2].rstrip().endswith("left behind")


def test_ls_as_json_for_programs(root: Path) -> None:
    found = document(ckpt("ls", "--json", "--all", root))
    assert (found["job"], found["damage"]) == ("gpt", None)
    assert found["url"].endswith("/root/gpt/checkpoints")
    ten, left, again, thirty = found["checkpoints"]
    assert ten.pop("saved").endswith("+00:00")
    size = 64 * 64 * 4 * 2 + 8 * 2
    assert ten == {
        "step": 10,
        "folder": "step_10",
        "term": 1,
        "epoch": 1,
        "bytes": size,
        "written_bytes": size,
        "referred_bytes": 0,
        "tensors": 3,
        "ranks": 1,
        "metrics": {"loss": 0.1},
        "on_line": True,
        "latest": False,
        "pinned": True,
        "damage": None,
    }
    assert (left["folder"], left["on_line"]) == ("step_20", False)
    assert (again["folder"], again["metrics"]) == ("step_20-2", {"loss": "nan"})
    assert (thirty["written_bytes"], thirty["referred_bytes"], thirty["latest"]) == (16, size - 16, True)


@pytest.mark.parametrize("below", ["", "gpt", "gpt/checkpoints", "gpt/checkpoints/step_10"])
def test_a_url_is_the_root_the_job_or_a_checkpoint(root: Path, below: str) -> None:
    told = document(ckpt("ls", "--json", root / below))
    assert told["job"] == "gpt"
    assert told["checkpoints"][0]["step"] == 10
    assert len(told["checkpoints"]) == (1 if "step_" in below else 3)


def test_the_job_is_said_or_found(root: Path) -> None:
    with CheckpointManager(root, job_id="bert") as manager:
        manager.save(b"bytes", step=1)
    assert "several jobs, bert, gpt: say which, with --job" in refusal(ckpt("ls", root))
    assert document(ckpt("ls", "--json", "--job", "bert", root))["job"] == "bert"
    assert document(ckpt("ls", "--json", root, STRATA_JOB_ID="bert"))["job"] == "bert"
    assert document(ckpt("ls", "--json", root / "gpt", STRATA_JOB_ID="bert"))["job"] == "gpt"
    assert "no checkpoints of job t5" in refusal(ckpt("ls", "--job", "t5", root))
    assert "there are no checkpoints at" in refusal(ckpt("ls", root / "nope"))


def test_ls_shows_damaged_manifests_as_such(root: Path) -> None:
    damage(root / "gpt/checkpoints/step_10/metadata.json")
    the_file(root, "step_20-2", ".json").unlink()
    told = lines(ckpt("ls", root))
    assert told[1].split() == ["10", "damaged,", "pinned"]
    assert told[2].split()[-1] == "damaged"
    assert "step 10 is damaged: " in told[4]
    assert "step_10/metadata.json" in told[4]
    assert "is missing: the checkpoint is not whole" in told[5]
    found = document(ckpt("ls", "--json", root))["checkpoints"]
    assert [bool(each["damage"]) for each in found] == [True, True, False]
    assert (found[0]["bytes"], found[0]["epoch"]) == (None, None)


def test_ls_without_a_sound_lineage_shows_all_and_ends_with_one(root: Path) -> None:
    (root / "gpt/checkpoints/lineage.json").write_bytes(b"{}")
    told = ckpt("ls", root)
    assert told.returncode == 1
    assert len(told.stdout.decode().splitlines()) == 5
    assert "lineage.json is damaged" in told.stderr.decode()


# -- show ------------------------------------------------------------------------------------------------------------


def test_show_draws_tensors_files_and_values(root: Path) -> None:
    told = "\n".join(line.rstrip() for line in lines(ckpt("show", root)))
    assert told.startswith("step 30 of job gpt\n")
    assert "32.0 KiB in 3 tensors: 16 B written, 32.0 KiB referred to" in told
    (head,) = (line.split() for line in told.splitlines() if line.startswith("model/head.weight"))
    assert head[1:] == ["float32", "64x64", "16.0", "KiB", "model/embed.weight", "1"]
    assert "referred to, of step_10" in told
    assert "optimizer/lr  0.0033" in told
    assert r"[red]text" in told
    assert "\x1b" not in told


def test_show_takes_a_step_and_patterns(root: Path) -> None:
    told = document(ckpt("show", "--json", root, "20", "--keys", "model/*", "-k", "step"))
    assert (told["folder"], told["epoch"], told["url"]) == (
        "step_20-2",
        2,
        (root / "gpt/checkpoints/step_20-2").as_uri(),
    )
    assert [each["name"] for each in told["tensors"]] == ["model/embed.weight", "model/head.weight", "model/bias"]
    assert told["tensors"][2] == {
        "name": "model/bias",
        "kind": "torch",
        "dtype": "bfloat16",
        "shape": [8],
        "bytes": 16,
        "tied_to": None,
        "is_view": False,
        "own": False,
        "files": [told["files"][0]["path"]],
    }
    assert told["tensors"][1]["tied_to"] == "model/embed.weight"
    assert told["values"] == [{"name": "step", "value": 25, "own": False}]
    assert told["files"][0]["own"]
    assert document(ckpt("show", "--json", root / "gpt/checkpoints/step_20"))["term"] == 1
    assert "no tensor of the checkpoint matches 'x*'" in refusal(ckpt("show", root, "--keys", "x*"))


def test_show_says_when_it_shows_less(root: Path) -> None:
    told = lines(ckpt("show", root, "--limit", "1"))
    assert [line for line in told if "more: see --limit" in line] == [
        "3 tensors more: see --limit and --keys",
        "2 values more: see --limit and --keys",
    ]


def of_ranks(where: Path) -> Path:
    """Of three ranks: of a big array each has stored some rows."""
    big = Replicated(torch.zeros(3 << 10, 1 << 10))
    states = [{"w": torch.ones(3), "big": big, "rng": PerRank({"at": rank, "s": torch.ones(2)})} for rank in range(3)]
    states[2]["late"] = PerRank(1)
    with Crew(where, 3) as crew:
        crew.save(states, 1)
    return where


def test_show_marks_what_each_rank_has_of_its_own(tmp_path: Path) -> None:
    root = of_ranks(tmp_path)
    told = document(ckpt("show", "--json", root))
    assert [(each["name"], each["own"]) for each in told["tensors"] + told["values"]] == [
        ("w", False),
        ("big", False),
        ("rng/s", True),
        ("rng/at", True),
    ]
    assert told["own_elsewhere"] == ["late"]
    shown = [line.rstrip() for line in lines(ckpt("show", root))]
    assert [line.split()[0] for line in shown if line.endswith("each rank's own")] == ["rng/s", "rng/at"]
    assert "  other ranks have something of their own in late" in shown


def test_show_of_bytes(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(b"12345", step=1)
    told = "\n".join(lines(ckpt("show", tmp_path)))
    assert "(the bytes)  uint8  5        5 B" in told
    assert "step_1/model.bin" in told
    assert document(ckpt("show", "--json", tmp_path))["tensors"][0]["kind"] == "bytes"


def test_show_refuses_what_is_not_there_or_damaged(root: Path) -> None:
    assert "no committed checkpoint 11 in" in refusal(ckpt("show", root, "11"))
    assert "'ten' names no checkpoint" in refusal(ckpt("show", root, "ten"))
    assert "names step_10 already" in refusal(ckpt("show", root / "gpt/checkpoints/step_10", "20"))
    damage(root / "gpt/checkpoints/step_10/metadata.json")
    assert "step_10/metadata.json" in refusal(ckpt("show", root, "10"))


# -- verify ----------------------------------------------------------------------------------------------------------


def test_verify_reads_the_latest_or_what_is_named(root: Path) -> None:
    latest, verdict, note = lines(ckpt("verify", root))
    assert latest.startswith("✓ step_30")
    assert verdict.endswith("all as written")
    assert note == "this is the latest alone; 3 others not looked at: see --all"
    assert document(ckpt("verify", "--json", root))["not_verified"] == ["step_10", "step_20", "step_20-2"]
    assert document(ckpt("verify", "--json", "--all", root))["not_verified"] == []
    assert len(lines(ckpt("verify", root / "gpt/checkpoints/step_30"))) == 2, "that is all of it"
    assert [line.split()[1] for line in lines(ckpt("verify", root, "10", "20"))[:-1]] == ["step_10", "step_20-2"]
    assert "4 checkpoints" in lines(ckpt("verify", "--all", root))[-1]
    assert "steps or --all" in refusal(ckpt("verify", "--all", root, "10"))


def test_verify_of_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "gpt/checkpoints/step_1").mkdir(parents=True)
    (tmp_path / "gpt/checkpoints/step_1/part-0-1-aa.json").write_text("{}")
    told = [refusal(ckpt("verify", tmp_path, "--job", "gpt", *more)) for more in ([], ["--all"], ["--all", "--json"])]
    assert "there is no committed checkpoint" in told[0]
    assert told == [told[0]] * 3


def test_rollback_says_what_it_left_behind(root: Path) -> None:
    assert "there is no committed checkpoint of step 7 in" in refusal(ckpt("rollback", root, "--to", "7"))
    assert ckpt("rollback", root, "--to", "10", answer=b"n\n").returncode == 1
    where = (root / "gpt/checkpoints").as_uri()
    told = document(ckpt("rollback", root, "--to", "20", "--yes", "--json"))
    assert told == {"url": where, "latest": 20, "left_behind": [30]}
    assert document(ckpt("rollback", root, "--to", "20", "--json")) == told | {"left_behind": []}
    assert lines(ckpt("rollback", root, "--to", "20"))[0].endswith("there is nothing to go back from")
    assert lines(ckpt("rollback", root, "--to", "10", "--yes")) == ["step 10 is the latest now; left behind: 20"]


def test_verify_names_the_damage_goes_on_and_ends_with_one(root: Path) -> None:
    damage(the_file(root, "step_10", ".safetensors"))
    damage(root / "gpt/checkpoints/step_20/metadata.json")
    told = ckpt("verify", "--all", root)
    assert told.returncode == 1
    ten, twenty, again, thirty, verdict = told.stdout.decode().splitlines()
    assert ten.startswith("✗ step_10")
    assert "is damaged: tensor 'model/bias'" in ten
    assert twenty.startswith("✗ step_20 ")
    assert "metadata.json" in twenty
    assert again.startswith("✓ step_20-2")  # it refers to the same file, but to other tensors in it
    assert thirty.startswith("✓ step_30")
    assert verdict.endswith("2 damaged")
    found = document(ckpt("verify", "--all", "--json", root), code=1)
    assert not found["ok"]
    assert [each["ok"] for each in found["checkpoints"]] == [False, False, True, True]
    assert found["checkpoints"][2]["bytes"] > 32_000
    assert document(ckpt("verify", "--json", root, "step_20-2"))["ok"]


# -- diff ------------------------------------------------------------------------------------------------------------


def test_diff_of_two_steps(root: Path) -> None:
    told = [line.split() for line in lines(ckpt("diff", root, "10", "30"))]
    assert told[0] == ["step", "10", "of", "job", "gpt", "→", "step", "30", "of", "job", "gpt"]
    assert ["~", "model/bias", "bfloat16[8]", "16", "B", "16", "B"] in told
    assert ["~", "step", "10", "30"] in told
    summary, places = lines(ckpt("diff", root, "10", "30"))[-2:]
    assert summary == "1 tensor changed (16 B); 3 tensors same (32.0 KiB); 2 values differ"
    assert places == "step_30 holds 16 B itself, and refers to 32.0 KiB in step_10"


def test_diff_as_json_with_the_latest_and_with_an_exit_code(root: Path) -> None:
    found = document(ckpt("diff", "--json", "--exit-code", root, "step_20"), code=1)
    assert (found["before"]["folder"], found["after"]["folder"], found["differ"]) == ("step_20", "step_30", True)
    assert found["totals"]["same"] == {"tensors": 3, "bytes": 32768}
    assert found["lies_in"] == {"step_10": 32768, "step_30": 16}
    assert found["tensors"][1] == {
        "name": "model/head.weight",
        "what": "same",
        "before": "float32[64, 64]",
        "after": "float32[64, 64]",
        "bytes": 16384,
        "changed_bytes": 0,
        "tied": True,
    }
    assert {"name": "step", "what": "changed", "before": 20, "after": 30} in found["values"]
    assert not document(ckpt("diff", "--json", "--exit-code", root, "20", "20"))["differ"]


def test_diff_of_two_urls(root: Path, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "elsewhere") as manager:
        manager.save({"model": {"bias": torch.zeros(9)}}, step=5)
    told = "\n".join(lines(ckpt("diff", root / "gpt/checkpoints/step_10", tmp_path / "elsewhere")))
    assert "step 10 of job gpt → step 5 of job default" in told
    assert "bfloat16[8] → float32[9]" in told
    assert "3 tensors removed" in told
    assert "no committed checkpoint 99" in refusal(ckpt("diff", root, "10", "99"))


# -- cp --------------------------------------------------------------------------------------------------------------


def test_cp_makes_a_whole_copy_of_one(root: Path, tmp_path: Path) -> None:
    told = ckpt("cp", root, tmp_path / "copy")
    copied, where = lines(told)
    assert copied.startswith("copied step 30: 32.0 KiB in ")
    assert where == f"in {(tmp_path / 'copy/gpt/checkpoints').as_uri()}"
    assert told.stderr == b""
    (found,) = document(ckpt("ls", "--json", tmp_path / "copy"))["checkpoints"]
    assert (found["step"], found["referred_bytes"], found["term"]) == (30, 0, 0)
    with CheckpointManager(tmp_path / "copy", job_id="gpt") as manager:
        assert torch.equal(manager.load()["model"]["bias"], torch.full((8,), 30).bfloat16())
    compared: list[str | Path] = ["diff", "--exit-code", root / "gpt/checkpoints/step_30", tmp_path / "copy"]
    assert lines(ckpt(*compared))[-1] == "4 tensors same (32.0 KiB); 0 values differ"


def test_cp_all_copies_the_line_and_goes_on_where_it_was(root: Path, tmp_path: Path) -> None:
    lines(ckpt("cp", root, tmp_path / "copy", "--step", "20", "--to-job", "new"))
    told = lines(ckpt("cp", "--all", root, tmp_path / "copy/new"))
    assert [line.partition(":")[0] for line in told[:-1]] == [
        "copied step 10",
        "step 20-2 is there already",
        "copied step 30",
    ]
    found = document(ckpt("ls", "--json", tmp_path / "copy"))
    assert (found["job"], [each["step"] for each in found["checkpoints"]]) == ("new", [10, 20, 30])
    assert document(ckpt("verify", "--all", "--json", tmp_path / "copy"))["ok"]


def test_cp_refuses_what_makes_no_sense(root: Path, tmp_path: Path) -> None:
    lines(ckpt("cp", root, tmp_path / "copy", "--step", "step_20"))
    assert "step 20 is committed already" in refusal(ckpt("cp", root, tmp_path / "copy", "--step", "20"))
    assert "--step or --all" in refusal(ckpt("cp", "--all", "--step", "20", root, tmp_path / "copy"))
    assert "ends with this command" in refusal(ckpt("cp", root, "memory://x"))
    assert "is one checkpoint" in refusal(ckpt("cp", root, tmp_path / "copy/gpt/checkpoints/step_20"))
    damage(the_file(root, "step_30", ".safetensors"))
    assert "is damaged: tensor 'model/bias'" in refusal(ckpt("cp", root, tmp_path / "copy"))
    assert [each["step"] for each in document(ckpt("ls", "--json", tmp_path / "copy"))["checkpoints"]] == [20]


def test_cp_of_many_tells_what_was_copied_before_it_failed(root: Path, tmp_path: Path) -> None:
    damage(the_file(root, "step_30", ".safetensors"))
    told = ckpt("cp", "--all", root, tmp_path / "copy")
    assert told.returncode == 2
    first, second, error = told.stderr.decode().splitlines()
    assert (first[:14], second[:16]) == ("copied step 10", "copied step 20-2")
    assert error.startswith("error: ")


def test_cp_that_is_told_to_stop_leaves_nothing_half(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "root") as manager:
        manager.save(bytes(300 << 20), step=1)
    copy = tmp_path / "copy"
    told = terminated_while_it_copies("ckpt", "cp", tmp_path / "root", copy, to=copy)
    assert (told.returncode, told.stderr) == (130, b"interrupted\n")
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_file() and path.name != "lock"]
    lines(ckpt("cp", tmp_path / "root", tmp_path / "copy"))


# -- export and import -----------------------------------------------------------------------------------------------


def test_export_to_a_file_and_import_it_again(root: Path, tmp_path: Path) -> None:
    told = ckpt("export", "safetensors", root, tmp_path / "out/w.safetensors", "--keys", "model/*", "--strip", "model/")
    assert lines(told)[0].startswith("exported 3 tensors, 32.0 KiB, of step 30 to ")
    assert os.listdir(tmp_path / "out") == ["w.safetensors"]
    found = load_file(tmp_path / "out/w.safetensors")
    assert set(found) == {"embed.weight", "head.weight", "bias"}
    assert torch.equal(found["bias"], torch.full((8,), 30).bfloat16())
    assert "exists already" in refusal(ckpt("export", "safetensors", root, tmp_path / "out/w.safetensors"))
    lines(ckpt("export", "safetensors", root, tmp_path / "out/w.safetensors", "--overwrite", "--step", "10"))

    command = ["import", str(tmp_path / "out/w.safetensors"), str(tmp_path / "new"), "--step", "7", "--epoch", "2"]
    (told_in,) = lines(ckpt(*command))
    assert told_in.startswith("imported 4 tensors, 48.0 KiB as step 7 in ")
    assert told_in.endswith("/new/default/checkpoints/step_7")
    assert "is there already" in lines(ckpt(*command))[0]
    with CheckpointManager(tmp_path / "new") as manager:
        assert manager.describe().epoch == 2
        assert torch.equal(manager.load()["model"]["bias"], torch.full((8,), 10).bfloat16())


def test_export_to_a_folder_of_shards(root: Path, tmp_path: Path) -> None:
    with CheckpointManager(root, job_id="big") as manager:
        manager.save({f"w{n}": torch.zeros(400_000) for n in range(3)}, step=1)
    told = ckpt("export", "safetensors", root / "big", tmp_path / "out", "--shard-gib", "0.002")
    assert lines(told)[0].endswith(": 4 files")
    assert sorted(os.listdir(tmp_path / "out"))[-1] == "model.safetensors.index.json"
    assert "exists already" in refusal(ckpt("export", "safetensors", root / "big", tmp_path / "out"))
    assert "need a folder" in refusal(
        ckpt("export", "safetensors", root / "big", tmp_path / "x.safetensors", "--shard-gib", "1")
    )


def test_export_for_transformers_needs_a_configuration(root: Path, tmp_path: Path) -> None:
    assert "transformers needs a config.json" in refusal(ckpt("export", "hf", root, tmp_path / "out"))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text('{"tie_word_embeddings": true}')
    lines(ckpt("export", "hf", root, tmp_path / "out", "--config", tmp_path / "config"))
    assert set(load_file(tmp_path / "out/model.safetensors")) == {"embed.weight", "bias"}
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]


def test_export_for_torch_and_import_it_again(root: Path, tmp_path: Path) -> None:
    told = ckpt("export", "dcp", root, tmp_path / "out", "--keys", "model/*", "--keys", "step")
    assert lines(told)[0].startswith("exported 3 tensors")
    assert told.stderr == b""
    lines(ckpt("import", tmp_path / "out", root, "--step", "31"))
    with CheckpointManager(root, job_id="gpt") as manager:
        assert manager.latest_step() == 31
        assert set(manager.load()) == {"model", "step"}
    assert "local folders only" in refusal(ckpt("export", "dcp", root, "s3://bucket/x"))


def test_import_refuses_what_would_run_code_or_is_nothing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(f"cos\nmkdir\n(S'{tmp_path}/owned'\ntR.".encode())
    assert "It may be malicious" in refusal(ckpt("import", tmp_path / "dcp", root, "--step", "1"))
    torch.save({"w": torch.ones(1), "x": Path("/")}, tmp_path / "x.pt")
    assert "could run code" in refusal(ckpt("import", tmp_path / "x.pt", root, "--step", "1"))
    assert "there is nothing at" in refusal(ckpt("import", tmp_path / "nope", root, "--step", "1"))
    assert not (tmp_path / "owned").exists()
    assert len(document(ckpt("ls", "--all", "--json", root))["checkpoints"]) == 4


def test_import_of_a_file_of_torch(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(5), "lr": 0.5}, tmp_path / "x.pt")
    lines(ckpt("import", tmp_path / "x.pt", tmp_path / "root", "--step", "3", "--job", "old", "--under", "model"))
    with CheckpointManager(tmp_path / "root", job_id="old") as manager:
        assert torch.equal(manager.load()["model"]["w"], torch.arange(5))
        assert manager.load()["model"]["lr"] == 0.5


# -- rm, pin, unpin --------------------------------------------------------------------------------------------------


def test_rm_asks_and_tells_what_stays_and_why(root: Path) -> None:
    lines(ckpt("unpin", root, "10"))
    for answer in (b"n\n", b""):
        told = ckpt("rm", root, "10", answer=answer)
        assert told.returncode == 1
        words = told.stderr.decode()
        assert "in 1 file stay: steps 20-2, 30 refer to them" in words
        assert "Remove step 10 (" in words
        assert len(document(ckpt("ls", "--all", "--json", root))["checkpoints"]) == 4
    assert lines(ckpt("rm", root, "10", answer=b"y\n"))[-1].strip().startswith("removed step 10 (")
    assert the_file(root, "step_10", ".safetensors").exists()
    assert not (root / "gpt/checkpoints/step_10/metadata.json").exists()
    assert document(ckpt("verify", "--all", "--json", root))["ok"]


def test_rm_of_several_and_of_the_latest(root: Path) -> None:
    told = ckpt("rm", "--yes", root, "latest", "20")
    assert lines(told)[0].startswith("removed steps 30, 20-2 (")
    assert "step 10 is then the latest" in told.stderr.decode()
    assert [each["folder"] for each in document(ckpt("ls", "--json", root))["checkpoints"]] == ["step_10"]
    assert not (root / "gpt/checkpoints/step_20-2").exists()


def test_rm_keeps_the_pinned_and_the_last_unless_forced(root: Path) -> None:
    assert "step 10 is pinned" in refusal(ckpt("rm", "-y", root, "10"))
    assert lines(ckpt("unpin", root, "10")) == ["step 10 is not pinned"]
    assert "nothing that could be loaded would be left" in refusal(ckpt("rm", "-y", root, "10", "20", "30"))
    assert "which steps?" in refusal(ckpt("rm", "-y", root))
    lines(ckpt("rm", "-y", root, "20", "30"))
    lines(ckpt("rm", "-y", "--force", root / "gpt/checkpoints/step_10"))
    assert [each["folder"] for each in document(ckpt("ls", "--all", "--json", root))["checkpoints"]] == ["step_20"]
    assert lines(ckpt("ls", root))[0].startswith("no checkpoint of")


def test_pin_and_unpin(root: Path) -> None:
    assert lines(ckpt("pin", root, "20", "30"))[0] == "step 20-2 is pinned: it stays until it is unpinned or removed"
    found = document(ckpt("ls", "--json", root))["checkpoints"]
    assert [each["pinned"] for each in found] == [True, True, True]
    lines(ckpt("unpin", root, "10", "30"))
    found = document(ckpt("ls", "--json", root))["checkpoints"]
    assert [each["pinned"] for each in found] == [False, True, False]
    assert "no committed checkpoint 99" in refusal(ckpt("pin", root, "99"))


def test_a_url_that_is_none_is_refused() -> None:
    for command in (["ls"], ["show"], ["verify"], ["rm", "1"], ["pin", "1"]):
        assert "ftp:// is not a storage" in refusal(ckpt(command[0], "ftp://host/x", *command[1:]))
