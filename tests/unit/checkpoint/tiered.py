"""Two storages for tests of tiers, and what is in them."""

from typing import Any

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.storage import BlockingStorage, MemoryStorage, StorageBackend
from strata.testing.faulty import Faults, FaultyStorage

DOWN = Faults(before=1.0)
UP = Faults()


class Pair:
    """A local disk and a storage behind it, either of which can fail."""

    def __init__(self, near: StorageBackend | None = None, far: StorageBackend | None = None) -> None:
        self.near = FaultyStorage(near or MemoryStorage(name="near"))
        self.far = FaultyStorage(far or MemoryStorage(name="far"))

    def manager(self, *, keep_count: int | None = None, incremental: bool = False, **config: Any) -> CheckpointManager:
        made = CheckpointManagerConfig(incremental=incremental, **config)
        return CheckpointManager(self.far, keep_count=keep_count, config=made, local=self.near)

    def elsewhere(self, name: str = "other") -> "Pair":
        """Another machine, with an empty disk, before the same storage."""
        other = Pair(MemoryStorage(name=name))
        other.far = FaultyStorage(self.far.inner)
        return other


def paths_in(storage: FaultyStorage) -> set[str]:
    inner = BlockingStorage(storage.inner)
    return {entry.path.removeprefix("default/checkpoints/") for entry in inner.list_all()}


def steps_in(storage: FaultyStorage) -> list[int]:
    """Those that are committed there."""
    names = [path.partition("/")[0] for path in paths_in(storage) if path.endswith("/metadata.json")]
    return sorted(int(name.removeprefix("step_").partition("-")[0]) for name in names)


def where(manager: CheckpointManager) -> dict[int, str]:
    """Of each step on the line: `local`, `remote` or `both`; and how its upload stands."""
    found = {}
    for each in manager.tiers().steps:
        place = "both" if each.local and each.remote else "local" if each.local else "remote"
        found[each.step] = f"{place} {each.upload}".strip()
    return found


def damage(storage: FaultyStorage, path: str, at: int = -1) -> None:
    """Flip a bit of a file."""
    inner, key = BlockingStorage(storage.inner), f"default/checkpoints/{path}"
    data = bytearray(inner.read(key))
    data[at] ^= 1
    inner.write(key, bytes(data))
