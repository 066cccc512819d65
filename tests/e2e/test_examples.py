"""The examples, run as a user would: to the end; and killed in the middle, and run again on as many processes or fewer.

What comes of it is what comes of a run that nobody disturbed: to the bit on as many processes, and else but for the
order in which numbers are added up. Every sample of an epoch is worked on once.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import CheckpointReader
from tests.servers.coordinator import coordinator
from tests.until import until

ROOT = Path(__file__).parents[2]
ROWS, STEPS, EPOCHS = 4096, 128, 2
FLAGS = ("--epochs", str(EPOCHS), "--save-every", "10")
KILLED_AFTER = 25
TENSORFLOW = pytest.param(
    "tensorflow_mlp",
    marks=pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"),
)
"""It is too large to be a dependency of every developer's."""


class Run:
    """A start of an example, and its notes of what it works on. processes: with torchrun. seconds: a step takes longer
    by so many."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *flags: str,
        processes: int = 0,
        noted: Path | None = None,
        seconds: float = 0.0,
        **environment: str,
    ) -> None:
        program = [sys.executable] if not processes else [sys.executable, "-m", "torch.distributed.run"]
        program += ["--standalone", f"--nproc-per-node={processes}"] if processes else []
        self.noted, self._processes = noted, processes or 1
        if noted is not None:
            noted.mkdir(parents=True)
            program += ["-m", "tests.e2e.noting", str(noted), str(seconds)]
        program += [f"examples/{name}.py", str(folder), *FLAGS, *flags]
        around = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environment
        self.process = subprocess.Popen(
            program, cwd=ROOT, env=around, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def ended(self) -> str:
        said, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        assert f"done after {STEPS} steps" in said
        return said

    def wait_for_steps(self, steps: int) -> None:
        def has_made_them() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            made = self.noted_by_each()
            return len(made) == self._processes and min(made.values()) >= steps

        until(has_made_them, 120)

    def noted_by_each(self) -> dict[int, int]:
        """Steps, by the id of the process."""
        assert self.noted is not None
        files = self.noted.glob("noted-*")
        return {int(file.name.partition("-")[2]): len(file.read_text("utf-8").splitlines()) for file in files}

    def kill(self) -> None:
        """All of it: torchrun first, so that it cannot end the others in good order."""
        self.process.kill()
        for process in self.noted_by_each():
            if process != self.process.pid:
                os.kill(process, signal.SIGKILL)
        self.process.communicate()


Start = Callable[..., Run]


@pytest.fixture
def start() -> Iterator[Start]:
    """None outlives the test: torchrun ends its processes when it is told to end."""
    started: list[Run] = []

    def begin(*given: Any, **how: Any) -> Run:
        started.append(Run(*given, **how))
        return started[-1]

    yield begin
    for each in started:
        if each.process.returncode is None:
            each.process.terminate()
            each.process.communicate()


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """All that was learned, by name. Read in another process: JAX must not be in one that other tests fork."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(read_arrays, folder).result(60)


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def gather(name: str, value: Any) -> None:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        for key, each in inner or ():
            gather(f"{name}/{key}", each)
        if inner is None and hasattr(value, "shape"):
            found[name] = np.asarray(value)

    with CheckpointReader(folder) as reader:
        assert reader.latest_step() == STEPS
        gather("", {name: each for name, each in reader.load().items() if name != "rng"})
    assert found
    return found


def check_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], *, to_the_bit: bool) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        if to_the_bit:
            np.testing.assert_array_equal(array, other[name], err_msg=name)
        else:
            np.testing.assert_allclose(array, other[name], rtol=1e-3, atol=1e-5, err_msg=name)


def check_samples(*noted: Path) -> None:
    """The last time that each batch was worked on, all who shared it had all of it, and each epoch has every sample."""
    batches: dict[tuple[int, int], dict[tuple[int, int], list[int]]] = {}
    for folder in noted:
        again: dict[tuple[int, int], dict[tuple[int, int], list[int]]] = {}
        for line in [line for file in folder.glob("noted-*") for line in file.read_text("utf-8").splitlines()]:
            note = json.loads(line)
            shares = again.setdefault((note["epoch"], note["batch"]), {})
            shares[note["places"], note["place"]] = note["ids"]
        batches |= again
    for epoch in range(EPOCHS):
        shared = [shares for (of, _), shares in batches.items() if of == epoch]
        assert sorted(each for shares in shared for ids in shares.values() for each in ids) == list(range(ROWS))


def check_gone_on(said: str, noted: Path) -> None:
    """From a checkpoint that was saved before, and not from further back."""
    found = re.search(r"from step (\d+)", said)
    assert found is not None, said
    step = int(found[1])
    assert 0 < step < STEPS
    counts = [len(file.read_text("utf-8").splitlines()) for file in noted.glob("noted-*")]
    assert set(counts) == {STEPS - step}


def killed(start: Start, name: str, folder: Path, processes: int = 0) -> Path:
    """In the middle of the first epoch. Gives where it noted what it worked on."""
    run = start(name, folder, processes=processes, noted=folder / "before", seconds=0.02)
    run.wait_for_steps(KILLED_AFTER)
    run.kill()
    return folder / "before"


@pytest.mark.parametrize("name", ["numpy_mlp", pytest.param("jax_mlp", marks=pytest.mark.long), TENSORFLOW])
def test_killed_and_run_again_it_comes_to_the_same(start: Start, tmp_path: Path, name: str) -> None:
    assert "from step 0\n" in start(name, tmp_path / "undisturbed").ended()
    before, after = killed(start, name, tmp_path / "killed"), tmp_path / "killed" / "after"
    said = start(name, tmp_path / "killed", noted=after).ended()
    check_gone_on(said, after)
    check_same(arrays(tmp_path / "killed" / name), arrays(tmp_path / "undisturbed" / name), to_the_bit=True)
    check_samples(before, after)


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("torch_ddp", [1]),
        pytest.param("torch_ddp", [2, 1], marks=pytest.mark.long),
        pytest.param("torch_fsdp", [1], marks=pytest.mark.long),
        pytest.param("torch_fsdp", [2, 4], marks=pytest.mark.long),
    ],
)
def test_torchrun_killed_on_two_processes_and_run_again_on_as_many_or_others(
    start: Start, tmp_path: Path, name: str, then: list[int]
) -> None:
    assert "world size 2, from step 0\n" in start(name, tmp_path / "undisturbed", processes=2).ended()
    expected = arrays(tmp_path / "undisturbed" / name)
    before = killed(start, name, tmp_path / "killed", processes=2)
    for processes in then:
        folder = tmp_path / f"on-{processes}"
        shutil.copytree(tmp_path / "killed", folder)
        said = start(name, folder, processes=processes, noted=folder / "after").ended()
        assert f"world size {processes}, from" in said
        check_gone_on(said, folder / "after")
        check_same(arrays(folder / name), expected, to_the_bit=processes == 2)
        check_samples(before, folder / "after")


def test_in_a_job_those_who_are_left_come_to_the_same(start: Start, tmp_path: Path) -> None:
    """One process alone and then a job, in one folder, as the example says."""
    folder = tmp_path / "example-data"
    start("numpy_mlp", folder).ended()
    (tmp_path / "coordinator").mkdir()
    with coordinator(tmp_path / "coordinator", "--lease-seconds", "4", "--heartbeat-seconds", "0.5") as running:
        how = {"COORDINATOR_URL": running.address, "seconds": 0.02}
        noted = [tmp_path / f"noted-by-{number}" for number in range(3)]
        crew = [start("numpy_mlp", folder, "--processes", "3", noted=each, **how) for each in noted]
        for each in crew:
            each.wait_for_steps(KILLED_AFTER)
        crew.pop().kill()
        said = [each.ended() for each in crew]
        assert all("from step 0\n" in each and "of 2\n" in each for each in said)
    # registered, the data is in the same order as without a job: shards are of a row group
    check_same(arrays(folder / "numpy_mlp_job"), arrays(folder / "numpy_mlp"), to_the_bit=False)


@pytest.mark.long
def test_the_quick_start_of_the_readme(tmp_path: Path) -> None:
    """Its commands as they are there, but for the one that kills: on two processes it comes half the way."""
    readme = (ROOT / "README.md").read_text("utf-8")
    data = readme.partition("```\npython")[2].partition("```")[0]
    script = readme.partition("```python\n# train.py\n")[2].partition("```")[0]
    assert len([line for line in script.splitlines() if line.strip()]) == 15
    around = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(command: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=around, capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("python" + data)
    (tmp_path / "train.py").write_text(script.replace("epochs=4", "epochs=2"))
    assert "{'rank': 1, 'world_size': 2}: step 1600, epoch 1" in run(
        "torchrun --standalone --nproc_per_node=2 train.py"
    )
    (tmp_path / "train.py").write_text(script)
    said = run("torchrun --standalone --nproc_per_node=1 train.py")
    assert "step 1600" not in said
    assert "{'rank': 0, 'world_size': 1}: step 2400, epoch 2" in said
    with CheckpointReader(tmp_path / "checkpoints", job_id="line") as reader:
        assert reader.latest_step() == 4000
