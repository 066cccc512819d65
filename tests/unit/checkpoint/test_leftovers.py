"""What becomes of the files of a save that fails: they go, but never what is or may be of a checkpoint."""

import asyncio
from contextlib import suppress

import pytest

from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.attempt import Attempt, new_attempt
from strata.checkpoint.leftovers import giving_back
from strata.checkpoint.lineage import begin_term
from strata.checkpoint.store import Folder, Store
from strata.errors import ObjectExists, StorageFull, StorageUnavailable
from strata.storage import BlockingStorage, MemoryStorage
from strata.storage.backend import Data
from strata.testing.faulty import FaultyStorage

FULL = StorageFull("no room", storage="memory://", key="")
SILENT = StorageUnavailable("no answer", storage="memory://", key="")
THERE = ObjectExists("it is there", storage="memory://", key="")


class Scene:
    """A save of step 1 that has written its part and its bytes, in a folder with a part of another save."""

    def __init__(self) -> None:
        self.store = Store(MemoryStorage(), "job")
        self.attempt: Attempt

    async def begin(self) -> None:
        term = await begin_term(self.store, -1, "host:1:abcd")
        self.attempt = new_attempt(Folder(1), term, 0, {}, {})
        for path in (f"{self.attempt.stem}-0.safetensors", self.attempt.bytes_path, "step_1/part-0-9-ffff.json"):
            await self.store.storage.write(self.store.key(path), b"")

    async def fail(self, error: BaseException, *, committing: bool = False) -> None:
        with suppress(type(error)):
            async with giving_back(self.store, self.attempt, committing=committing) as others:
                others.append(self.attempt.bytes_path)
                raise error

    async def left(self) -> list[str]:
        names = {f"{self.attempt.stem}-0.safetensors": "own part", self.attempt.bytes_path: "own bytes"}
        names["step_1/part-0-9-ffff.json"] = "another's part"
        return sorted([names[path] async for path in self.store.paths() if path in names])


ALL = ["another's part", "own bytes", "own part"]


@pytest.mark.parametrize(
    ("error", "committing", "left"),
    [
        (FULL, False, ["another's part"]),
        (SILENT, False, ["another's part"]),
        (FULL, True, ["another's part"]),
        (SILENT, True, ALL),
        (THERE, True, ALL),
        (asyncio.CancelledError(), True, ALL),
    ],
)
def test_its_own_go_unless_the_commit_may_have_been_made(
    error: BaseException, committing: bool, left: list[str]
) -> None:
    async def play() -> None:
        scene = Scene()
        await scene.begin()
        await scene.fail(error, committing=committing)
        assert await scene.left() == left

    asyncio.run(play())


def test_once_another_has_taken_over_nothing_goes() -> None:
    async def play() -> None:
        scene = Scene()
        await scene.begin()
        await begin_term(scene.store, -1, "another:1:abcd")
        await scene.fail(FULL)
        assert await scene.left() == ALL

    asyncio.run(play())


def test_nothing_of_a_folder_with_a_checkpoint_goes() -> None:
    async def play() -> None:
        scene = Scene()
        await scene.begin()
        await scene.store.storage.write(scene.store.key("step_1/metadata.json"), b"")
        await scene.fail(FULL)
        assert await scene.left() == ALL

    asyncio.run(play())


class Late(FaultyStorage):
    """A manifest is put only some time after the storage has failed to answer."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.manifests: list[tuple[str, bytes]] = []

    async def put_if_absent(self, path: str, data: Data) -> None:
        if path.endswith("/metadata.json"):
            self.manifests.append((path, bytes(data)))
            raise StorageUnavailable("no answer", storage=self.url, key=path)
        await super().put_if_absent(path, data)


def test_what_a_commit_without_an_answer_needs_is_there_when_it_comes() -> None:
    storage = Late()
    with CheckpointManager(storage) as manager, pytest.raises(StorageUnavailable):
        manager.save({"state": 1}, step=1)
    for path, data in storage.manifests:
        BlockingStorage(storage.inner).write(path, data)
    with CheckpointReader(storage.inner) as reader:
        assert reader.load() == {"state": 1}
