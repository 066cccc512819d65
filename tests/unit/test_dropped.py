"""What a user drops without closing it keeps no thread, no descriptor and no object, and nothing waits for it."""

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata import CheckpointManager, CheckpointReader, DatasetRegistry, NotFound, Training, TrainingOrchestrator
from strata.checkpoint.running import finish_all
from strata.data import Loader, ResumableSampler
from strata.errors import StorageUnavailable
from strata.rpc import BlockingChannel, Channel
from strata.storage import BlockingStorage, LocalStorage, MemoryStorage, open_storage
from strata.testing.faulty import Faults, FaultyStorage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc"),
]

TIMES = 25
STATE = {"weights": np.ones(10)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dropped")
    with CheckpointManager(made / "saved") as manager:
        manager.save(STATE, step=1)
    (made / "rows").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"x": list(range(20))}), made / "rows" / f"{number}.parquet")
    return made


def load(folder: Path) -> None:
    CheckpointReader(folder / "saved").load()


def load_what_is_not_there(folder: Path) -> None:
    with pytest.raises(NotFound):
        CheckpointReader(folder / "empty").load()


def read_rows(folder: Path) -> None:
    next(iter(Loader(folder / "rows", 8, format="parquet")))


def load_into(folder: Path) -> None:
    CheckpointReader(folder / "saved").load(into={"weights": np.zeros(10)})


def ask_a_coordinator_that_is_away(folder: Path) -> None:
    CheckpointManager(folder / "saved", coordinator_url="127.0.0.1:9", job_id="default").latest_step()


def train(folder: Path) -> None:
    rows = Loader(folder / "rows", 8, format="parquet")
    next(iter(Training({"weights": np.zeros(10)}, rows, CheckpointManager(MemoryStorage()))))


def list_in_part(folder: Path) -> None:
    next(BlockingStorage(open_storage(folder / "saved")).list_all())


def save_behind(folder: Path) -> None:
    CheckpointManager(MemoryStorage()).save_async(STATE, step=1)


def save_where_it_fails(folder: Path) -> None:
    with pytest.raises(StorageUnavailable):
        CheckpointManager(failing()).save(STATE, step=1)


def save_behind_where_it_fails(folder: Path) -> None:
    handle = CheckpointManager(failing()).save_async(STATE, step=1)
    finish_all()
    assert handle.status == "failed"


def failing() -> FaultyStorage:
    return FaultyStorage(MemoryStorage(), faults=Faults(before=1.0))


def save_in_two_tiers(folder: Path) -> None:
    CheckpointManager(MemoryStorage(), local=folder / "tier" / os.urandom(8).hex()).save(STATE, step=1)


DROPPED: dict[str, Callable[[Path], object]] = {
    "CheckpointReader.load": load,
    "CheckpointReader.load, nothing there": load_what_is_not_there,
    "CheckpointReader.load, into": load_into,
    "CheckpointReader.latest_step": lambda folder: CheckpointReader(folder / "saved").latest_step(),
    "CheckpointManager": lambda folder: CheckpointManager(folder / "saved"),
    "CheckpointManager.load": lambda folder: CheckpointManager(folder / "saved").load(),
    "CheckpointManager.save": lambda folder: CheckpointManager(folder / os.urandom(8).hex()).save(STATE, step=1),
    "CheckpointManager.save, failed": save_where_it_fails,
    "CheckpointManager.save_async": save_behind,
    "CheckpointManager.save_async, failed": save_behind_where_it_fails,
    "CheckpointManager, of a job": ask_a_coordinator_that_is_away,
    "CheckpointManager, local": save_in_two_tiers,
    "BlockingStorage": lambda folder: BlockingStorage(LocalStorage(folder / "saved")).exists("nothing"),
    "BlockingStorage.list_all": list_in_part,
    "Loader": read_rows,
    "Loader, not read": lambda folder: Loader(folder / "rows", 8, format="parquet"),
    "ResumableSampler": lambda folder: next(iter(ResumableSampler(100, 8))),
    "Training": train,
    "TrainingOrchestrator": lambda folder: TrainingOrchestrator("w0", "127.0.0.1:9", 1, 0),
    "DatasetRegistry": lambda folder: DatasetRegistry("127.0.0.1:9"),
    "BlockingChannel": lambda folder: BlockingChannel(Channel("127.0.0.1:9")),
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is dropped is gone at once: a program with millions of objects seldom looks for cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def settled() -> tuple[set[threading.Thread], int, Counter[str]]:
    """The threads of Strata, how many descriptors there are, and how many of its objects."""
    finish_all()
    own = {thread for thread in threading.enumerate() if thread.name.startswith("strata")}
    objects = Counter(type(each).__qualname__ for each in gc.get_objects() if _is_of_strata(each))
    return own, len(os.listdir("/proc/self/fd")), objects


def _is_of_strata(each: object) -> bool:
    """False for objects of `strata.testing`: other tests of this process may leave a faulty storage at work."""
    module = str(type(each).__module__)
    return module.startswith("strata.") and not module.startswith("strata.testing.") and not isinstance(each, type)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", DROPPED)
def test_what_is_dropped_many_times_leaves_nothing(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    drop = DROPPED[name]
    caplog.set_level(logging.CRITICAL, "strata.checkpoint")  # pytest keeps what is logged, with the errors in it
    for _ in range(3):  # what is made once in a process, and stays
        drop(folder)
    threads, descriptors, objects = settled()
    for _ in range(TIMES):
        drop(folder)
    deadline = time.monotonic() + 30
    for thread in settled()[0] - threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    now = settled()
    assert {thread for thread in now[0] - threads if thread.is_alive()} == set()
    assert now[1] <= descriptors
    assert {kind: count for kind, count in (now[2] - objects).items() if count >= TIMES // 2} == {}


CHILD = """
import os, sys, threading, time
from pathlib import Path
from strata import CheckpointManager, CheckpointReader

def threads():
    return {each for each in threading.enumerate() if each.name.startswith("strata-local")}

folder = Path(sys.argv[1])
parents = CheckpointReader(folder), CheckpointManager(folder)
for each in parents:
    each.load()
child = os.fork()
if not child:
    parents = each = None
    for _ in range(20):
        CheckpointReader(folder).load()
        CheckpointManager(folder).latest_step()
    deadline = time.monotonic() + 30
    for one in threads():
        one.join(max(0.0, deadline - time.monotonic()))
    os._exit(len(threads()))
_, status = os.waitpid(child, 0)
assert parents[0].load() is not None, "what a child drops is its parent's still"
sys.exit(os.waitstatus_to_exitcode(status))
"""

ENDING = """
import sys
from strata import CheckpointManager, CheckpointReader
from strata.data import Loader
from strata.storage import BlockingStorage, open_storage

folder = sys.argv[1]
kept = [CheckpointReader(folder + "/saved"), CheckpointManager(folder + "/saved"), CheckpointManager("memory://")]
kept[0].load(), kept[1].load(), kept[2].save_async(b"1", step=1)
rows = iter(Loader(folder + "/rows", 8, format="parquet"))
next(rows)
files = BlockingStorage(open_storage(folder)).list_all()
next(files)
kept.append(kept)
"""


def ended(program: str, *arguments: Path) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONWARNINGS": "ignore::DeprecationWarning",  # of a fork beside threads
        "STRATA_JOB_ID": "default",  # a run that says none is told so
    }
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_nor_do_those_that_a_forked_child_drops(folder: Path) -> None:
    done = ended(CHILD, folder / "saved")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_closes_nothing_ends_without_a_word(folder: Path) -> None:
    done = ended(ENDING, folder)
    assert (done.returncode, done.stderr) == (0, "")
