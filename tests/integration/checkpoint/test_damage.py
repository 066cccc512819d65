"""A flipped bit in any byte of any file, a file cut short at any length, a file that is missing: an error that names
it, or what was saved, and never anything else. An older checkpoint is not given in place of one that cannot be read.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.errors import CheckpointDamaged, NotFound, StrataError
from strata.storage import BlockingStorage, LocalStorage
from strata.testing.faulty import Faults, FaultyStorage
from tests.integration.checkpoint.scenes import JOB
from tests.unit.checkpoint.states import assert_same

TRIED = 60
"""Places in each file, drawn anew each time; `make test-long` tries every byte, and every bit of what is no blank."""

FROZEN = torch.arange(40.0)
OLD, NEW = {"old": np.arange(5), "frozen": FROZEN}, {"w": torch.arange(60.0), "frozen": FROZEN, "n": 2, "raw": b"raw"}


class Saved(NamedTuple):
    """Two checkpoints in a folder."""

    root: Path
    old: Any
    new: Any
    storage: FaultyStorage

    @property
    def folder(self) -> Path:
        return self.root / JOB

    def reader(self) -> CheckpointReader:
        """One that knows nothing yet; and leaves no marks: it reads the same, and sooner."""
        return CheckpointReader(self.storage)


def _save(root: Path, old: Any, new: Any, *, incremental: bool = False) -> Saved:
    with CheckpointManager(root, incremental=incremental) as manager:
        manager.save(old, step=1)
        manager.save(new, step=2)
        manager.pin(1)
    return Saved(root, old, new, FaultyStorage(LocalStorage(root), faults=Faults(before=1, only=frozenset({"write"}))))


KINDS: dict[str, Callable[[Path], Saved]] = {
    "tree": lambda root: _save(root, OLD, NEW),
    "bytes": lambda root: _save(root, b"the old bytes", b"the new bytes" * 20),
    "incremental": lambda root: _save(root, OLD, NEW, incremental=True),
}


@pytest.fixture(params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Saved]:
    made = KINDS[request.param](tmp_path / "root")
    yield made
    BlockingStorage(made.storage).close()


def places_in(whole: bytes, how_many: str) -> Iterator[tuple[int, int]]:
    """A byte and a bit of it."""
    if how_many == "all":
        for place, byte in enumerate(whole):
            yield from ((place, bit) for bit in (range(8) if byte != ord(" ") else [place % 8]))
        return
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    drawn = random.Random(seed)
    blank = [place for place in range(len(whole)) if whole[place : place + 1] == b" "]
    # Every place that says something, and a few of the blanks that fill a header up.
    told = sorted({*range(len(whole))} - {*blank}) + drawn.sample(blank, min(20, len(blank)))
    for place in told if len(told) <= TRIED else drawn.sample(told, TRIED):
        yield place, drawn.randrange(8)


def refused(call: Callable[[], Any], file: Path, tensor: str = "") -> None:
    """By an error that names the file, and the tensor."""
    with pytest.raises(CheckpointDamaged) as raised:
        call()
    assert file.name in str(raised.value)
    assert f"{file.parent.name}/{file.name}" in str(raised.value)
    assert tensor in str(raised.value)


some_and_all = pytest.mark.parametrize("how_many", ["some", pytest.param("all", marks=pytest.mark.long)])


def every_flip(file: Path, how_many: str) -> Iterator[int]:
    """The file with one bit flipped, again and again; the place of its byte."""
    whole = file.read_bytes()
    for place, bit in places_in(whole, how_many):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        yield place
    file.write_bytes(whole)


def damaged_files(saved: Saved) -> list[Path]:
    """All that step 2 is made of."""
    own = [path for path in saved.folder.glob("step_2/*") if path.name != "metadata.json"]
    if (referred := saved.folder / "step_1").exists() and b"step_1/" in b"".join(path.read_bytes() for path in own):
        own += referred.glob("*.safetensors")
    return sorted(own)


@pytest.mark.timeout(1800)
@some_and_all
def test_no_flipped_bit_in_a_file_goes_unnoticed(saved: Saved, how_many: str) -> None:
    for file in damaged_files(saved):
        header = int.from_bytes(file.read_bytes()[:8], "little") + 8 if file.suffix == ".safetensors" else 0
        for place in every_flip(file, how_many):
            with saved.reader() as reader:
                if file.suffix == ".safetensors" and place < header:  # for other readers: these have the manifest
                    assert_same(reader.load(2), saved.new)
                elif file.parent.name == "step_2":
                    refused(lambda: reader.load(2), file, "tensor" if file.suffix != ".json" else "")
                    refused(reader.load, file)
                else:  # a part of the older one that this one does not need may be damaged
                    try:
                        assert_same(reader.load(2), saved.new)
                    except CheckpointDamaged as error:
                        assert f"step_1/{file.name}" in str(error)  # noqa: PT017
                        assert "'frozen'" in str(error)  # noqa: PT017
                if file.parent.name == "step_2":
                    refused(lambda: reader.verify(2), file)
                    assert_same(reader.load(1), saved.old)
                else:
                    refused(lambda: reader.verify(1), file)
    with saved.reader() as reader:
        assert_same(reader.load(), saved.new)
        reader.verify()


@pytest.mark.timeout(1800)
@some_and_all
def test_a_damaged_manifest_is_told_and_no_older_one_taken_in_its_place(saved: Saved, how_many: str) -> None:
    file = saved.folder / "step_2/metadata.json"
    for _ in every_flip(file, how_many):
        with saved.reader() as reader:
            for call in (lambda: reader.load(2), reader.load, reader.latest_step, reader.describe, reader.verify):
                refused(call, file)
            assert reader.list_checkpoints() == [1]
            assert_same(reader.load(1), saved.old)


@some_and_all
def test_a_damaged_manifest_of_an_old_one_is_in_nobodys_way(saved: Saved, how_many: str) -> None:
    file = saved.folder / "step_1/metadata.json"
    for _ in every_flip(file, how_many):
        with saved.reader() as reader:
            refused(lambda: reader.load(1), file)
            assert_same(reader.load(), saved.new)
            assert reader.latest_step() == 2
    file.write_bytes(file.read_bytes()[:-7])
    with CheckpointManager(saved.root, keep_count=1) as manager:
        manager.load()
        manager.save(saved.new, step=3)
        manager.wait()
        assert manager.list_checkpoints() == [3]
        assert file.exists()  # what cannot be read is not deleted but by name
        manager.unpin(1)
        manager.delete(1)
        assert not file.parent.exists()


@some_and_all
def test_a_damaged_lineage_is_told_and_can_be_made_anew(saved: Saved, how_many: str) -> None:
    file = saved.folder / "lineage.json"
    for _ in every_flip(file, how_many):
        with saved.reader() as reader:
            for call in (reader.load, lambda: reader.load(2), reader.list_checkpoints, reader.latest_step):
                refused(call, file)
    file.write_bytes(b"")
    with CheckpointManager(saved.root) as manager:
        with pytest.raises(CheckpointDamaged, match=r"lineage\.json is damaged.* Remove it, and it is made anew"):
            manager.save(saved.new, step=3)
        file.unlink()
        assert_same(manager.load(), saved.new)
        manager.save(saved.new, step=3)
        assert manager.list_checkpoints() == [1, 2, 3]


def test_without_a_lineage_what_was_left_behind_is_not_the_latest(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (10, 20, 30):
            manager.save({"run": 1}, step=step)
        manager.load(10)
        manager.save({"run": 2}, step=20)
    (tmp_path / JOB / "lineage.json").unlink()
    with CheckpointManager(tmp_path) as manager:
        assert manager.list_checkpoints() == [10, 20]
        assert manager.load() == {"run": 2}
        manager.load(10)
        manager.save({"run": 3}, step=15)
        assert manager.list_checkpoints() == [10, 15]
        assert manager.describe().term == 3


@pytest.mark.parametrize("name", ["pins/step_1", "readers/mark.json"])
def test_damaged_pins_and_marks_change_no_state(saved: Saved, name: str) -> None:
    file = saved.folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b'{"folders":["step_1"],"until_unix_seconds":9e9}')
    for _ in every_flip(file, "some"):
        with saved.reader() as reader:
            assert_same(reader.load(), saved.new)
            assert_same(reader.load(1), saved.old)
        with CheckpointManager(saved.root, keep_count=2) as manager:
            manager.pin(2)  # looks at everything, deletes nothing
            assert manager.list_checkpoints() == [1, 2]


# -- cut short, missing, in the wrong place ----------------------------------------------------------------------------


def lengths_of(whole: bytes) -> list[int]:
    """Those that matter, and some between."""
    size = len(whole)
    some = range(3, min(size, 700), 29)
    return sorted(
        {*some}
        | {0, 1, 7, 8, 9, size // 2, 4095, 4096, 4097, size - 240, size - 161, size - 2, size - 1} & {*range(size)}
    )


def test_a_file_that_is_cut_short_is_told(saved: Saved) -> None:
    for file in [*damaged_files(saved), saved.folder / "step_2/metadata.json"]:
        whole = file.read_bytes()
        for length in lengths_of(whole):
            file.write_bytes(whole[:length])
            with saved.reader() as reader:
                refused(lambda: reader.load(2), file)
                refused(reader.verify, file)
                if file.parent.name == "step_2":
                    assert_same(reader.load(1), saved.old)
        file.write_bytes(whole)


def test_a_file_that_is_longer_than_it_was_is_told(saved: Saved) -> None:
    for file in [*damaged_files(saved), saved.folder / "step_2/metadata.json", saved.folder / "lineage.json"]:
        whole = file.read_bytes()
        for more in (b"\0", b" ", b"\n", whole):
            file.write_bytes(whole + more)
            with saved.reader() as reader:
                refused(lambda: reader.load(2), file)
        file.write_bytes(whole)


def test_a_file_that_is_full_of_nothing_is_told(saved: Saved) -> None:
    """As some filesystems leave it when power fails."""
    for file in [*damaged_files(saved), saved.folder / "step_2/metadata.json", saved.folder / "lineage.json"]:
        whole = file.read_bytes()
        file.write_bytes(bytes(len(whole)))
        with saved.reader() as reader:
            refused(lambda: reader.load(2), file)
        file.write_bytes(whole)


@pytest.mark.parametrize("in_its_place", ["nothing", "a folder"])
def test_a_file_that_is_missing_is_told(saved: Saved, in_its_place: str) -> None:
    for file in damaged_files(saved):
        whole = file.read_bytes()
        file.unlink()
        if in_its_place == "a folder":
            file.mkdir()
        with saved.reader() as reader:
            refused(lambda: reader.load(2), file)
            refused(reader.load, file)
            refused(reader.verify, file)
            if file.parent.name == "step_2":
                assert_same(reader.load(1), saved.old)
        if in_its_place == "a folder":
            file.rmdir()
        file.write_bytes(whole)


def test_without_its_manifest_there_is_no_checkpoint(saved: Saved) -> None:
    """Its presence is the commit: what has none was never made, or is deleted."""
    (saved.folder / "step_2/metadata.json").unlink()
    with CheckpointManager(saved.root) as manager:
        with pytest.raises(NotFound, match=r"no committed checkpoint of step 2 .*the latest are: 1"):
            manager.load(2)
        assert manager.latest_step() == 1
        assert_same(manager.load(), saved.old)
        manager.save(saved.new, step=2)
        assert_same(manager.load(), saved.new)
        manager.verify()


def test_a_manifest_in_the_wrong_place_is_told(saved: Saved) -> None:
    for name in ("step_7", "step_1"):
        shutil.copytree(saved.folder / "step_2", saved.folder / name, dirs_exist_ok=True)
        with saved.reader() as reader:
            step = int(name.removeprefix("step_"))
            with pytest.raises(CheckpointDamaged, match=rf"{name}/metadata\.json says it is of step 2: it was moved"):
                reader.load(step)
            assert_same(reader.load(2), saved.new)
            if step > 2:
                with pytest.raises(CheckpointDamaged, match="the latest checkpoint, of step 7, cannot be read"):
                    reader.load()
                shutil.rmtree(saved.folder / name)


def test_a_damaged_one_that_was_left_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (10, 20, 30):
            manager.save({"run": 1, "step": step}, step=step)
        manager.load(10)
        manager.save({"run": 2}, step=15)
    (tmp_path / JOB / "step_30/metadata.json").write_bytes(b"{}")
    with CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 15
        assert manager.load() == {"run": 2}
        with pytest.raises(CheckpointDamaged, match=r"step_30/metadata\.json"):
            manager.load(30)
        manager.save({"run": 2}, step=30)  # and not in the way of the same step, either
        assert manager.load(30) == {"run": 2}


def test_whoever_goes_back_past_damage_says_so(saved: Saved) -> None:
    """By the step, or by deleting what is damaged."""
    (saved.folder / "step_2/metadata.json").write_bytes(b"{}")
    with CheckpointManager(saved.root) as manager:
        with pytest.raises(
            CheckpointDamaged,
            match=r"of step 2, cannot be read: .* load it by its step \(there are: 1\), or delete step 2",
        ):
            manager.load()
        assert_same(manager.load(1), saved.old)
        manager.save(saved.new, step=2)
        assert manager.list_checkpoints() == [1, 2]
        assert_same(manager.load(), saved.new)
    (saved.folder / "step_2-2/metadata.json").write_bytes(b"{}")
    with CheckpointManager(saved.root) as manager:
        manager.delete(2)
        manager.delete(2)
        assert_same(manager.load(), saved.old)


def test_what_is_verified_is_what_lies_there_now(saved: Saved) -> None:
    """And not what was known of it."""
    with CheckpointManager(saved.root) as manager:
        manager.list_checkpoints()
        manager.verify()
        file = saved.folder / "step_2/metadata.json"
        file.write_bytes(file.read_bytes().replace(b'"epoch": 0', b'"epoch": 9'))
        refused(lambda: manager.verify(2), file)


def test_damage_that_is_found_while_loading_in_place_is_told(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"a": torch.ones(3_000_000), "b": torch.ones(3)}, step=1)
        (file,) = tmp_path.rglob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointDamaged, match="is a mixture now: do not train on it"):
            manager.load(into={"a": torch.zeros(3_000_000), "b": torch.zeros(3)})


def test_nothing_damaged_is_referred_to_where_that_can_be_seen(tmp_path: Path) -> None:
    """A file that is missing or cut short is written again, not referred to."""
    state = {"frozen": torch.arange(500_000.0), "n": 1}
    with CheckpointManager(tmp_path, incremental=True) as manager:
        manager.save(state, step=1)
        (file,) = tmp_path.rglob("*.safetensors")
        os.truncate(file, file.stat().st_size - 1)
        manager.save(state, step=2)
        manager.verify(2)
        assert_same(manager.load(), state)


def test_every_error_of_damage_is_of_one_kind(tmp_path: Path) -> None:
    """Random bytes in the place of any file."""
    saved = KINDS["tree"](tmp_path / "root")
    drawn = random.Random(7)
    storage = BlockingStorage(saved.storage.inner)
    for entry in [*storage.list_all()]:
        whole = storage.read(entry.path)
        for size in (1, 100, 5000):
            storage.write(entry.path, drawn.randbytes(size))
            with saved.reader() as reader:
                for call in (reader.load, lambda: reader.load(1), reader.list_checkpoints, reader.verify):
                    try:
                        call()
                    except StrataError as error:
                        assert isinstance(error, CheckpointDamaged)  # noqa: PT017
        storage.write(entry.path, whole)
    storage.close()
