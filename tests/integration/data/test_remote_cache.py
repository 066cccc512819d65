"""The cache of data on a real object store: whoever is killed when, it is whole; it is shared, and keeps its limit.

That a process may be killed at each step it takes on the disk is tried in tests/unit/data/test_cache.py. Here it is
killed at each request that it makes, and at steps of a loader that has to make room.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strata.data import cache as module
from strata.data.cache import Cache
from strata.data.index import DatasetIndex
from strata.data.loader import Loader
from tests.integration.data.places import ROWS, Place, rows_of
from tests.servers.proxy import Request
from tests.unit.data.making import as_tfrecord, table
from tests.unit.data.steps import AtStep, in_child, killed

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.xdist_group("seaweedfs"),
]

ROOMY = 1 << 20


def kept(root: Path, suffix: str = "") -> list[Path]:
    return [path for path in root.glob("*/shards/*/*") if path.name.endswith(suffix)]


def check(root: Path, limit: int) -> None:
    """No more than the limit, of what was written into. A loader's threads go on meanwhile: what they remove while this
    looks is not counted, since it may have made room for what is."""
    found = {}
    for path in kept(root):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if (data := file.read()).strip(b"\0"):
                found[path] = (os.fstat(file.fileno()), len(data))
    assert sum(size for path, (seen, size) in found.items() if is_still(path, seen)) <= limit


def is_still(path: Path, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), seen)
    except FileNotFoundError:
        return False


def reading(index: DatasetIndex, root: Path, limit: int, expected: pa.Table, **said: Any) -> Callable[[], None]:
    """An epoch, by a process that has looked at nothing yet."""
    anew = pickle.loads(pickle.dumps(index))

    def work() -> None:
        given: dict[str, list[Any]] = {name: [] for name in expected.column_names}
        wanted: Any = {"shuffle": False, "tail": "short", "threads": 1, **said}
        with Loader(anew, 8, cache=root, cache_bytes=limit, output="arrow", **wanted) as loader:
            for batch in loader:
                check(root, limit)
                for name, values in given.items():
                    values.extend(batch[name].to_pylist())
        assert given == expected.select([*given]).to_pydict()

    return work


@pytest.fixture
def parquet(s3_place: Place) -> tuple[DatasetIndex, pa.Table]:
    return s3_place.indexed("parquet"), table(ROWS).select(["id", "text"])


@pytest.fixture
def records(s3_place: Place) -> tuple[DatasetIndex, pa.Table, int]:
    """Many small blocks, and a limit that a third of them fill."""
    index = s3_place.indexed("tfrecord-small-blocks")
    limit = 10 * (int(index.lengths.max()) + module.HEAD_BYTES)
    assert index.blocks > 20
    return index, as_tfrecord(table(ROWS)), limit


def test_who_is_killed_at_any_request_leaves_nothing_torn(
    s3_place: Place, parquet: tuple[DatasetIndex, pa.Table], tmp_path: Path
) -> None:
    index, expected = parquet
    number, code = 0, None
    while code != 0:
        number += 1
        root = tmp_path / str(number)
        child = multiprocessing.get_context("fork").Process(target=reading(index, root, ROOMY, expected))
        left, started = iter(range(number - 1)), threading.Event()

        def rule(_: Request, left: Any = left, started: Any = started, child: Any = child) -> None:
            if next(left, None) is None:
                started.wait(30)
                os.kill(child.pid, signal.SIGKILL)

        s3_place.proxy.rule = rule
        child.start()
        started.set()
        child.join(60)
        code = child.exitcode
        s3_place.works()
        assert code in {0, -signal.SIGKILL}
        assert len(kept(root, ".part")) <= 1
        reading(index, root, ROOMY, expected)()
        assert not kept(root, ".part")
        assert len(kept(root)) == index.blocks
    assert number > index.blocks


@pytest.mark.parametrize("between", [271, pytest.param(11, marks=pytest.mark.long)])
def test_who_is_killed_while_room_is_made_leaves_nothing_torn(
    records: tuple[DatasetIndex, pa.Table, int], tmp_path: Path, between: int
) -> None:
    index, expected, limit = records
    step, code = 1, None
    while code != 0:
        root = tmp_path / str(step)
        reading(index, root, limit, expected)()
        read = reading(index, root, limit, expected)

        def dies(step: int = step, read: Callable[[], None] = read) -> None:
            steps: Any = AtStep(step, killed)
            module.os = steps  # type: ignore[attr-defined]  # its own steps count, not those of all
            read()
            os._exit(0 if steps.is_past else 1)

        code = in_child(dies)
        assert code in {0, -signal.SIGKILL}
        check(root, limit)
        reading(index, root, limit, expected)()
        assert not kept(root, ".part")
        step += between
    assert step > 3 * between


def test_threads_keep_the_limit_together(records: tuple[DatasetIndex, pa.Table, int], tmp_path: Path) -> None:
    index, expected, limit = records
    reading(index, tmp_path, limit, expected, threads=8, memory_bytes=1)()
    assert 0 < len(kept(tmp_path)) < index.blocks
    assert not kept(tmp_path, ".part")


def test_processes_that_share_a_cache_fetch_everything_once(
    s3_place: Place, parquet: tuple[DatasetIndex, pa.Table], tmp_path: Path
) -> None:
    index, expected = parquet
    s3_place.asked()
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=reading(index, tmp_path, ROOMY, expected)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert len([request for request in s3_place.asked() if request.method == "GET"]) == index.blocks
    assert len(kept(tmp_path)) == index.blocks


def test_what_is_kept_is_read_while_the_storage_cannot_be(
    s3_place: Place, parquet: tuple[DatasetIndex, pa.Table], tmp_path: Path
) -> None:
    index, expected = parquet
    reading(index, tmp_path, ROOMY, expected)()
    s3_place.proxy.rule = lambda request: "cut" if request.method == "GET" else None
    reading(index, tmp_path, ROOMY, expected)()
    entry = min(kept(tmp_path))
    entry.write_bytes(entry.read_bytes()[:-1] + b"x")
    s3_place.works()
    s3_place.asked()
    assert rows_of(index.cached(Cache(tmp_path, ROOMY))).num_rows == ROWS
    assert len([request for request in s3_place.asked() if request.method == "GET"]) == 1
