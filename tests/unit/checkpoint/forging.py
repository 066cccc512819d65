"""Checkpoints that lie: manifests that say what an attacker likes, under digests that match."""

import os
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from strata.checkpoint.manifest import digest_of
from strata.storage import BlockingStorage, StorageBackend

Place: TypeAlias = tuple[str | int, ...]
"""The way to a value in JSON: keys and positions."""
HOSTILE: list[Any] = [
    -1,
    1,
    10**18,
    2**63,
    2**70,
    -(2**63),
    1.5,
    None,
    True,
    "",
    "object",
    "numpy:|O",
    "numpy:i4,O",
    "../../../outside",
    "/etc/passwd",
    "x" * 5000,
    "\ud7ff\0",
    [],
    [-1],
    [10**18, 10**18],
    [2] * 100,
    {},
    {"torch": 0},
    {"named": "class", "fields": ["__class__"], "values": []},
    {"dict": {"a": {"numpy": 10**9}}},
    {"torch.dtype": "load"},
    {"int": "9" * 5000},
]
TRIED = 500
"""Lies about each manifest, drawn anew each time; `make test-long` tries all of them."""


class Forgery:
    """One checkpoint in a storage, whose manifest and one of whose parts are rewritten at will."""

    def __init__(self, storage: StorageBackend, step: int, rank: int = 0) -> None:
        self._storage = BlockingStorage(storage)
        self.folder = f"default/checkpoints/step_{step}"
        (self._part_key,) = (
            entry.path
            for entry in self._storage.list_all(self.folder)
            if f"part-{rank}-" in entry.path and ".json" in entry.path
        )
        self._metadata_key = f"{self.folder}/metadata.json"
        self._part = self._storage.read(self._part_key)
        self._metadata = self._storage.read(self._metadata_key)

    @property
    def part(self) -> Any:
        """As it was saved."""
        return msgspec.json.decode(self._part)

    @property
    def metadata(self) -> Any:
        """As it was saved."""
        return msgspec.json.decode(self._metadata)

    def say_in_part(self, part: Any) -> None:
        """The part says this, and the checkpoint names it by its digest."""
        self.say_in_part_as_written(msgspec.json.encode(part))

    def say_in_part_as_written(self, data: bytes) -> None:
        self._storage.write(self._part_key, data)
        told = self.metadata
        own = next(part for part in told["parts"] if self._part_key.endswith(part["path"]))
        own |= {"size": len(data), "digest": digest_of(data)}
        self.say_in_metadata(told)

    def say_in_metadata(self, metadata: Any) -> None:
        self._storage.write(self._metadata_key, with_digest(metadata))

    def restore(self) -> None:
        self._storage.write(self._part_key, self._part)
        self._storage.write(self._metadata_key, self._metadata)


def with_digest(told: dict[str, Any]) -> bytes:
    """A file that ends with a digest of itself."""
    rest = {key: value for key, value in told.items() if key != "digest"}
    bare = msgspec.json.format(msgspec.json.encode(rest | {"digest": ""})) + b"\n"
    return bare.replace(b'"digest": ""\n}\n', f'"digest": "{digest_of(bare)}"\n}}\n'.encode())


def places(value: Any, way: Place = ()) -> Iterator[Place]:
    """The way to everything in it, and to itself."""
    yield way
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*way, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from places(inner, (*way, position))


def put(value: Any, way: Place, new: Any) -> Any:
    """The same, with something else in that place."""
    if not way:
        return new
    key, rest = way[0], way[1:]
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[key] = put(value[key], rest, new)  # type: ignore[index]
    return copied


def lies(told: Any, how_many: str, least_depth: int = 1) -> Iterator[tuple[Place, Any]]:
    """What else could stand in each place: some of all, from a seed that is printed, or all."""
    found = [(way, lie) for way in places(told) if len(way) >= least_depth for lie in HOSTILE]
    if how_many == "some":
        seed = int.from_bytes(os.urandom(4))
        print(f"seed {seed}")
        found = random.Random(seed).sample(found, min(TRIED, len(found)))
    for way, lie in found:
        if way != ("digest",):
            yield way, lie
