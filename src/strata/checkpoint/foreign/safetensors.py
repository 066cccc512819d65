"""safetensors files in any storage: their headers, and the bytes of their tensors on request."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import msgspec

from strata.checkpoint.assembling import Stretch
from strata.checkpoint.dtypes import KNOWN
from strata.checkpoint.foreign.items import Item, Streamed, path_of
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import UNREADABLE
from strata.checkpoint.plan import HEADER_MOST
from strata.checkpoint.together import together
from strata.errors import InvalidInput, ObjectCorrupt, ObjectNotFound
from strata.storage import StorageBackend

READS_AT_ONCE = 4
_DTYPES = {each.stored: each for each in KNOWN.values() if each.stored != "U8" or each.name == "uint8"}


class Place(NamedTuple):
    """A tensor in a file."""

    name: str
    key: str
    at: int
    dtype: str
    shape: tuple[int, ...]
    size: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


async def read_header(storage: StorageBackend, key: str) -> list[Place]:
    """Where the tensors of a file are. InvalidInput if it is none, or not all of one."""
    where = f"{storage.url}/{key}"
    size = await storage.size(key)
    length = int.from_bytes(await storage.read_range(key, 0, 8), "little") if size >= 8 else size
    if not 2 <= length <= min(HEADER_MOST, size - 8):
        raise InvalidInput(f"{where} is no safetensors file, or not all of one: its header cannot be {length:,} bytes")
    data = bytes(await storage.read_range(key, 8, length))
    try:
        entries = msgspec.json.decode(data, type=dict[str, Any])
        entries.pop("__metadata__", None)
        told = msgspec.convert(entries, dict[str, _Entry])
    except UNREADABLE as error:
        raise InvalidInput(f"{where} is no safetensors file: its header is not what it should be: {error}") from error
    places = [_place(name, key, entry, 8 + length, where) for name, entry in told.items()]
    for place in places:
        if place.at + place.size > size:
            raise InvalidInput(f"{where} is cut off: tensor {place.name!r} ends at {place.at + place.size:,}")
    return places


def _place(name: str, key: str, entry: _Entry, base: int, where: str) -> Place:
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise InvalidInput(f"tensor {name!r} in {where} is of type {entry.dtype}, which checkpoints do not have")
    first, last = entry.data_offsets
    needs = dtype.bytes * prod(entry.shape)
    if any(each < 0 for each in entry.shape) or not 0 <= first <= last or last - first != needs:
        raise InvalidInput(f"tensor {name!r} in {where} has {last - first:,} bytes, and its shape needs {needs:,}")
    return Place(name, key, base + first, dtype.name, entry.shape, needs)


async def places_in(storage: StorageBackend, keys: Iterable[str]) -> list[Place]:
    """Of the tensors in some files; no name may be in two of them."""
    found: dict[str, Place] = {}
    for key in keys:
        for place in await read_header(storage, key):
            if place.name in found:
                raise InvalidInput(f"tensor {place.name!r} is in {found[place.name].key} and in {key}")
            found[place.name] = place
    return list(found.values())


async def places_by_index(storage: StorageBackend, index: str) -> list[Place]:
    """Of the tensors that an index names, each in the file that it says."""
    where = f"{storage.url}/{index}"
    try:
        wanted = msgspec.json.decode(await storage.read(index), type=_Index).weight_map
    except UNREADABLE as error:
        raise InvalidInput(f"{where} is no index of safetensors files: {error}") from error
    there: dict[tuple[str, str], Place] = {}
    for key in dict.fromkeys(wanted.values()):
        try:
            there.update({(place.name, key): place for place in await read_header(storage, key)})
        except ObjectNotFound as error:
            raise InvalidInput(f"{where} names {key!r}, which is not there") from error
    missing = [name for name, key in wanted.items() if (name, key) not in there]
    if missing:
        raise InvalidInput(f"{where} says that {missing[0]!r} is in {wanted[missing[0]]!r}, and it is not")
    return [there[name, key] for name, key in wanted.items()]


class SafetensorsSource:
    """Tensors in files, to be read in stretches."""

    def __init__(self, storage: StorageBackend, places: Sequence[Place]) -> None:
        self._storage, self._places = storage, places
        self._versions: dict[str, str] = {}

    @property
    def items(self) -> list[Item]:
        return [
            Item(path_of(place.name), Streamed(number, place.dtype, place.shape, place.size))
            for number, place in enumerate(self._places)
        ]

    async def remember(self) -> None:
        """What the files are now; for `check`."""
        for key in {place.key for place in self._places}:
            self._versions[key] = await self._storage.version(key)

    async def check(self) -> None:
        """They are still the same."""
        for key, version in self._versions.items():
            if await self._storage.version(key) != version:
                raise InvalidInput(f"{self._storage.url}/{key} was replaced while it was read: import it again")

    async def supply(self, stretches: Sequence[Stretch]) -> None:
        turn = asyncio.Semaphore(READS_AT_ONCE)
        await together(self._read(*run, turn) for run in self._runs(stretches))

    async def _read(self, key: str, at: int, targets: list[Block], turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                await self._storage.read_into(key, at, targets)
            except ObjectCorrupt as error:
                raise InvalidInput(f"{self._storage.url}/{key} became shorter while it was read: {error}") from error

    def _runs(self, stretches: Sequence[Stretch]) -> Iterator[tuple[str, int, list[Block]]]:
        """Neighbours in a file together."""
        placed = sorted(
            (self._places[each.tensor].key, self._places[each.tensor].at + each.start, number)
            for number, each in enumerate(stretches)
        )
        run: list[Block] = []
        begins = ("", 0)
        end = -1
        for key, at, number in placed:
            target = stretches[number].target
            if run and (key, at) != (begins[0], end):
                yield *begins, run
                run = []
            if not run:
                begins = (key, at)
            run.append(target)
            end = at + len(target)
        if run:
            yield *begins, run
