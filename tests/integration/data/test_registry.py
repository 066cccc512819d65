"""`DatasetRegistry` against a real coordinator: every sample is one rank's, whoever asks, whenever, and however."""

import asyncio
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

import dtruntime
from strata import (
    BlockingStorage,
    Conflict,
    DataChanged,
    DatasetRegistry,
    InvalidInput,
    NotFound,
    Refused,
    ShardAssignment,
    open_storage,
)
from tests.servers.coordinator import Client, CoordinatorProcess

TOTAL, SHARD = 1_281_167, 10_000


def json_lines(folder: Path, sizes: list[int]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(sizes):
        (folder / f"part-{number:03}.jsonl").write_text('{"x": 1}\n' * rows)
    return folder


def samples(shares: list[list[ShardAssignment]]) -> list[tuple[int, int]]:
    """The ranges of all shares together, joined where they touch; a sample that comes twice keeps them apart."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted((each.start_index, each.end_index) for share in shares for each in share):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def owners(registry: DatasetRegistry, ranks: list[int]) -> dict[int, int]:
    return {each.shard_id: rank for rank in ranks for each in registry.get_assignments("imagenet", rank, 0)}


def imagenet(registry: DatasetRegistry, **said: Any) -> Any:
    given: Any = {"path": "/data/imagenet", "format": "parquet", "total_samples": TOTAL, "shard_size": SHARD} | said
    return registry.register(dataset_id="imagenet", **given)


# -- the contract's example --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def imagenet_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many samples as the example has, in files of one shard each."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("imagenet")
    for number, start in enumerate(range(0, TOTAL, SHARD)):
        rows = min(SHARD, TOTAL - start)
        parquet.write_table(arrow.table({"label": arrow.repeat(number, rows)}), folder / f"train-{number:05}.parquet")
    return folder


def test_the_example_gives_every_file_to_one_rank(
    running: CoordinatorProcess, client: Client, imagenet_files: Path
) -> None:
    client.world(4)
    url, files, sliced = f"http://{running.address}", {}, {}

    async def main(RANK: int, epoch: int) -> list[str]:  # noqa: N803  as in the example
        registry = dtruntime.DatasetRegistry(url)
        registry.register(
            dataset_id="imagenet",
            path=str(imagenet_files),
            format="parquet",
            total_samples=1_281_167,
            shard_size=10_000,
            shuffle=True,
        )
        shard_files = registry.get_shard("imagenet", worker_rank=RANK, epoch=epoch)
        sliced[RANK, epoch] = registry.get_assignments("imagenet", worker_rank=RANK, epoch=epoch)
        await registry.close_async()
        return shard_files

    for epoch in (0, 1, 10**6):
        for rank in range(4):
            files[rank, epoch] = asyncio.run(main(rank, epoch))
        shares = [files[rank, epoch] for rank in range(4)]
        assert sorted(chain(*shares)) == sorted(map(str, imagenet_files.iterdir()))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert samples([sliced[rank, epoch] for rank in range(4)]) == [(0, TOTAL)]
        for rank in range(4):  # files in the order of the shards, each of which is one file here
            assert [each.file_paths for each in sliced[rank, epoch]] == [[file] for file in files[rank, epoch]]
    assert files[0, 0] != files[0, 1]
    assert sorted(files[0, 0]) == sorted(files[0, 1])


def test_the_path_need_not_be_there_where_the_number_of_samples_is_known(
    running: CoordinatorProcess, client: Client
) -> None:
    client.world(2)
    with DatasetRegistry(running.address) as registry:
        imagenet(registry, shuffle=True)
        shares = [registry.get_assignments("imagenet", rank) for rank in range(2)]
        assert samples(shares) == [(0, TOTAL)]
        assert {tuple(each.file_paths) for share in shares for each in share} == {()}
        assert {(each.dataset_id, each.epoch) for share in shares for each in share} == {("imagenet", 0)}
        for asked in (
            lambda: registry.get_shard("imagenet", 0),
            lambda: registry.get_assignments("imagenet", 0, files=True),
        ):
            with pytest.raises(
                NotFound, match=r"/data/imagenet on .*: ask where the files are, or take get_assignments"
            ):
                asked()


# -- who has what ------------------------------------------------------------------------------------------------------


def test_the_same_answer_whoever_asks_and_whoever_came_first(running: CoordinatorProcess, job: str) -> None:
    answers = []
    for number, arrivals in enumerate(([0, 1, 2, 3, 4], [3, 0, 4, 2, 1], [2])):  # at last only one of those declared
        name = f"{job[:100]}-{number}"
        with Client(running.address, name) as workers, DatasetRegistry(running.address, job_id=name) as registry:
            if number != 1:
                imagenet(registry, shuffle=True, seed=7)
            for rank in arrivals:
                workers.register(f"w{rank}", rank=rank, world_size=5)
            imagenet(registry, shuffle=True, seed=7)
            with DatasetRegistry(running.address, job_id=name) as another:
                answers.append([another.get_assignments("imagenet", rank, 3) for rank in range(5)])
            assert answers[-1] == [registry.get_assignments("imagenet", rank, 3) for rank in range(5)]
    assert answers[0] == answers[1] == answers[2]
    assert samples(answers[0]) == [(0, TOTAL)]


def test_epochs_can_be_asked_for_before_and_after_they_were(running: CoordinatorProcess, client: Client) -> None:
    client.world(3)
    with DatasetRegistry(running.address) as registry:
        imagenet(registry, shuffle=True)
        asked = [0, 1, 2, 5, 2**40]
        first = {epoch: registry.get_assignments("imagenet", 1, epoch) for epoch in asked}
        assert len({tuple(each.shard_id for each in share) for share in first.values()}) == len(asked)
        for epoch in range(3):
            assert registry.get_assignments("imagenet", 1) == first[epoch]
            assert registry.advance_epoch("imagenet") == epoch + 1
        assert {epoch: registry.get_assignments("imagenet", 1, epoch) for epoch in asked} == first


def test_without_shuffling_the_order_is_the_natural_one(running: CoordinatorProcess, client: Client) -> None:
    client.world(3)
    with DatasetRegistry(running.address) as registry:
        imagenet(registry)
        for epoch in (0, 4):
            shares = [registry.get_assignments("imagenet", rank, epoch) for rank in range(3)]
            assert all(share == sorted(share, key=lambda each: each.start_index) for share in shares)
            assert samples(shares) == [(0, TOTAL)]
            assert shares[0][-1].end_index - shares[0][-1].start_index <= SHARD


@pytest.mark.parametrize("strategy", ["slots", "ring"])
def test_who_leaves_and_who_joins_moves_no_more_than_must_move(
    strategy: Any, running: CoordinatorProcess, client: Client
) -> None:
    workers = [client.register(f"w{rank}") for rank in range(5)]
    with DatasetRegistry(running.address) as registry:
        imagenet(registry, strategy=strategy)
        before = owners(registry, [0, 1, 2, 3, 4])
        client.call("Deregister", worker_id="w2", incarnation=workers[2].incarnation)
        with pytest.raises(NotFound, match="rank 2 has no shards"):
            registry.get_shard("imagenet", 2)
        after = owners(registry, [0, 1, 3, 4])
        assert len(before) == len(after) == 129
        assert all(before[shard] == after[shard] for shard in before if before[shard] != 2)

        client.register("w9", rank=2)
        assert owners(registry, [0, 1, 2, 3, 4]) == before
        client.register("w5", rank=5)
        grown = owners(registry, [0, 1, 2, 3, 4, 5])
        moved = [shard for shard in grown if grown[shard] != before[shard]]
        assert {grown[shard] for shard in moved} == {5}
        if strategy == "slots":
            assert len(moved) in (21, 22)  # a sixth of 129


def test_nobody_has_anything_before_somebody_came(running: CoordinatorProcess, job: str) -> None:
    with DatasetRegistry(running.address) as registry:
        imagenet(registry)
        with pytest.raises(NotFound, match="nobody has joined"):
            registry.get_shard("imagenet", 0)
        with pytest.raises(NotFound, match=r"no dataset 'mnist'.*registered: imagenet"):
            registry.get_shard("mnist", 0)


# -- files -------------------------------------------------------------------------------------------------------------


def test_samples_are_counted_where_they_are_not_given(
    running: CoordinatorProcess, client: Client, tmp_path: Path
) -> None:
    client.world(2)
    folder, told = json_lines(tmp_path / "lines", [50, 0, 50, 50, 20]), []
    with DatasetRegistry(running.address) as registry:
        made = registry.register("lines", folder, "jsonl", shard_size=50, progress=lambda *done: told.append(done))
        assert (made.version, made.epoch, made.total_samples) == (1, 0, 170)
        assert told[-1] == (5, 5, 170)
        files = [registry.get_shard("lines", rank) for rank in range(2)]
        assert sorted(chain(*files)) == [str(folder / f"part-{number:03}.jsonl") for number in (0, 2, 3, 4)]
        assert asyncio.run(registry.register_async("lines", folder, "jsonl", shard_size=50)) == made
        with pytest.raises(InvalidInput, match="no samples"):
            registry.register("empty", json_lines(tmp_path / "empty", [0, 0]), "jsonl")
        with pytest.raises(NotFound, match=r"nowhere on .*: give total_samples, or register from where the files are"):
            registry.register("nowhere", tmp_path / "nowhere", "jsonl")
        assert [each.dataset_id for each in registry.list()] == ["lines"]


def test_a_list_of_files_keeps_its_order(running: CoordinatorProcess, client: Client, tmp_path: Path) -> None:
    client.world(1)
    folder = json_lines(tmp_path / "lines", [3, 5, 2])
    chosen = [folder / "part-002.jsonl", folder / "part-000.jsonl"]
    with DatasetRegistry(running.address) as registry:
        assert registry.register("lines", chosen, "jsonl", shard_size=2).total_samples == 5
        assert registry.get_shard("lines", 0) == list(map(str, chosen))
        assert [each.file_paths for each in registry.get_assignments("lines", 0)] == [
            [str(chosen[0])],
            [str(chosen[1])],
            [str(chosen[1])],
        ]


def test_files_of_a_storage_are_named_by_their_urls(running: CoordinatorProcess, client: Client) -> None:
    client.world(2)
    with BlockingStorage(open_storage("memory://registry/lines")) as storage:
        for number in range(4):
            storage.write(f"part-{number}.jsonl", b'{"x": 1}\n' * 5)
        with DatasetRegistry(running.address) as registry:
            registry.register("lines", "memory://registry/lines/", "jsonl", shard_size=5)
            files = [registry.get_shard("lines", rank) for rank in range(2)]
            assert sorted(chain(*files)) == [f"memory://registry/lines/part-{number}.jsonl" for number in range(4)]
            with DatasetRegistry(running.address) as another:
                assert files == [asyncio.run(another.get_shard_async("lines", rank)) for rank in range(2)]


def test_a_file_of_two_workers_is_refused_and_the_loader_named(
    running: CoordinatorProcess, client: Client, tmp_path: Path
) -> None:
    world = client.world(2)
    folder = json_lines(tmp_path / "lines", [100, 100, 40])
    with DatasetRegistry(running.address) as registry:
        registry.register("lines", folder, "jsonl", total_samples=240, shard_size=10)
        for rank in range(2):
            with pytest.raises(Refused, match=r"part-000.jsonl would belong to two workers.*strata\.data\.Loader"):
                registry.get_shard("lines", rank)
        shares = [registry.get_assignments("lines", rank, files=True) for rank in range(2)]
        assert {each.shard_id: each.file_paths for share in shares for each in share} == {
            shard: [str(folder / f"part-{shard // 10:03}.jsonl")] for shard in range(24)
        }
        client.call("Deregister", worker_id="w1", incarnation=world[1].incarnation)
        assert registry.get_shard("lines", 0) == sorted(map(str, folder.iterdir()))  # they are all one worker's now


def test_files_that_hold_other_samples_than_were_registered(
    running: CoordinatorProcess, client: Client, tmp_path: Path
) -> None:
    client.world(1)
    folder = json_lines(tmp_path / "lines", [30, 30])
    with DatasetRegistry(running.address) as registry:
        registry.register("lines", folder, "jsonl", total_samples=61, shard_size=30)
        with pytest.raises(DataChanged, match=r"registered with 61 samples, and the files in .* hold 60 now"):
            registry.get_shard("lines", 0)
        registry.register("lines", folder, "jsonl", total_samples=60, shard_size=30, replace=True)
        assert len(registry.get_shard("lines", 0)) == 2
        json_lines(folder, [30, 30, 30])
        assert registry.register("lines", folder, "jsonl", shard_size=30, replace=True).version == 3
        assert len(registry.get_shard("lines", 0)) == 3


def test_rows_that_moved_from_file_to_file_are_told(
    running: CoordinatorProcess, client: Client, tmp_path: Path
) -> None:
    client.world(1)
    folder = json_lines(tmp_path / "lines", [10, 30, 20])
    with DatasetRegistry(running.address) as registry, DatasetRegistry(running.address) as another:
        registry.register("lines", folder, "jsonl", shard_size=10)
        json_lines(folder, [30, 10, 20])
        with pytest.raises(DataChanged, match="which has samples 0 to 29, is not what was there") as told:
            another.get_shard("lines", 0)
        assert told.value.samples == (0, 30)
        with pytest.raises(DataChanged, match="is not what was there"):
            another.get_assignments("lines", 0, files=True)


# -- registering again -------------------------------------------------------------------------------------------------


def test_registering_again_and_something_else(running: CoordinatorProcess, job: str) -> None:
    with DatasetRegistry(running.address) as registry, DatasetRegistry(running.address) as another:
        assert registry.list() == []
        first = imagenet(registry)
        assert imagenet(another, path="/data/imagenet/") == imagenet(registry) == first
        with pytest.raises(Conflict) as conflict:
            imagenet(another, shuffle=True, seed=1)
        told = str(conflict.value)
        assert "version 1 and differs: shuffle was False, is True; seed was 0, is 1" in told
        assert "replace=True" in told
        assert imagenet(registry).version == 1

        assert imagenet(another, seed=1, replaces_version=1).version == 2
        assert imagenet(another, seed=1, replaces_version=1).version == 2  # as a repeated call would
        with pytest.raises(Conflict, match="version 2"):
            imagenet(registry, seed=2, replaces_version=1)
        assert imagenet(registry, seed=2, replace=True).version == 3
        assert imagenet(registry, seed=2, replace=True).version == 3
        assert registry.register("a", "/data/a", "csv", total_samples=5, replace=True).version == 1

        known = {each.dataset_id: each for each in another.list()}
        assert list(known) == ["a", "imagenet"]
        found = known["imagenet"]
        assert (found.version, found.epoch, found.total_samples, found.shard_size) == (3, 0, TOTAL, SHARD)
        assert (found.shuffle, found.seed, found.path, found.format) == (False, 2, "/data/imagenet", "parquet")
        assert (found.strategy, found.order, found.consumed_samples) == ("slots-v1", "elastic", 0)


def test_unregistering(running: CoordinatorProcess, job: str) -> None:
    with DatasetRegistry(running.address) as registry:
        imagenet(registry)
        with pytest.raises(Refused, match="at version 1 now, not 2"):
            registry.unregister("imagenet", version=2)
        registry.unregister("imagenet")
        registry.unregister("imagenet")
        assert registry.list() == []
        with pytest.raises(NotFound, match="mnist"):
            registry.unregister("mnist")
        with pytest.raises(NotFound, match=r"'imagenet'.*register it first"):
            registry.advance_epoch("imagenet")
        assert imagenet(registry, seed=5).version == 2


# -- epochs ------------------------------------------------------------------------------------------------------------


def test_an_epoch_is_left_once_however_many_ask(running: CoordinatorProcess, client: Client) -> None:
    client.world(8)
    meeting = threading.Barrier(8)

    def worker(rank: int) -> list[int]:
        with DatasetRegistry(running.address) as registry:
            imagenet(registry, shuffle=True)
            seen = []
            for _ in range(5):
                meeting.wait(60)
                seen.append(registry.advance_epoch("imagenet"))
            return seen

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(worker, range(8))) == [[1, 2, 3, 4, 5]] * 8


def test_which_epoch_is_left(running: CoordinatorProcess, client: Client) -> None:
    client.world(1)
    with DatasetRegistry(running.address) as registry, DatasetRegistry(running.address) as late:
        imagenet(registry)
        assert registry.advance_epoch("imagenet", from_epoch=0) == 1
        assert registry.advance_epoch("imagenet", from_epoch=0) == 1
        with pytest.raises(Refused, match="is in epoch 1: it cannot advance from epoch 7"):
            registry.advance_epoch("imagenet", from_epoch=7)
        assert late.advance_epoch("imagenet") == 2  # it had heard of none, and so asked
        assert registry.advance_epoch("imagenet") == 2  # it knew of 1, which is over
        assert registry.get_assignments("imagenet", 0)[0].epoch == 2
        assert registry.get_assignments("imagenet", 0, epoch=9)[0].epoch == 9
        assert registry.advance_epoch("imagenet") == 3  # to look at another epoch changes nothing


# -- from anywhere -----------------------------------------------------------------------------------------------------


def test_the_forms_that_are_awaited(running: CoordinatorProcess, client: Client, tmp_path: Path) -> None:
    client.world(2)
    folder = json_lines(tmp_path / "lines", [10] * 6)

    async def main() -> None:
        async with DatasetRegistry(running.address) as registry:
            made = await registry.register_async("lines", folder, "jsonl", shard_size=10, shuffle=True)
            both = await asyncio.gather(*(registry.get_shard_async("lines", rank, 0) for rank in range(2)))
            assert both == [registry.get_shard("lines", rank, 0) for rank in range(2)]  # also on a running loop
            assert sorted(chain(*both)) == sorted(map(str, folder.iterdir()))
            shares = await asyncio.gather(*(registry.get_assignments_async("lines", rank) for rank in range(2)))
            assert samples(list(shares)) == [(0, 60)]
            assert await asyncio.gather(*(registry.advance_epoch_async("lines", 0) for _ in range(9))) == [1] * 9
            assert [each.version for each in await registry.list_async()] == [made.version]
            with pytest.raises(Conflict):
                await registry.register_async("lines", folder, "jsonl", shard_size=5)
            await registry.unregister_async("lines")
            assert await registry.list_async() == []

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_asks_too(running: CoordinatorProcess, client: Client) -> None:
    client.world(2)
    with DatasetRegistry(running.address) as registry:
        imagenet(registry, shuffle=True)
        expected = registry.get_assignments("imagenet", 1, 4)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if registry.get_assignments("imagenet", 1, 4) == expected else 2
                    registry.close()
                finally:
                    os._exit(code)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        assert registry.advance_epoch("imagenet") == 1


def test_a_spawned_child_asks_too(running: CoordinatorProcess, client: Client) -> None:
    with DatasetRegistry(running.address, job_id=client.job) as registry:
        imagenet(registry)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.map(methodcaller("advance_epoch", "imagenet"), [registry] * 2) == [1, 1]


def test_many_threads_share_one(running: CoordinatorProcess, client: Client) -> None:
    client.world(4)
    with DatasetRegistry(running.address) as registry, ThreadPoolExecutor(8) as pool:
        imagenet(registry, shuffle=True)
        answers = list(pool.map(lambda call: registry.get_assignments("imagenet", call % 4, 1), range(64)))
    assert all(answers[call] == answers[call % 4] for call in range(64))
    assert samples(answers[:4]) == [(0, TOTAL)]
