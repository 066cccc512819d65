"""The tensors of a checkpoint as safetensors files: one, or several of a size with an index, as Hugging Face has them.

Each file appears whole or not at all, and the index last. Every byte is verified on the way; memory holds a few chunks.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from strata.checkpoint.assembling import Assembler
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.leaves import Leaf, LeafSupply, check_leaf, leaves_of
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.matching import Keys, chooser
from strata.checkpoint.plan import FilePlan, Wanted, planned_file
from strata.checkpoint.readers import marked
from strata.checkpoint.saving import BYTES
from strata.checkpoint.skeleton import PACKAGES, array_kinds
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.whole import Whole
from strata.errors import InvalidInput
from strata.storage import StorageBackend

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HEADER_NAME = "__metadata__"


class Meter(NamedTuple):
    """Is told how many bytes there will be, and of each that is done."""

    expect: Callable[[int], None] = lambda size: None
    move: Callable[[int], None] = lambda count: None


class Exported(NamedTuple):
    """What was written, and how many arrays were left out since they are no tensors."""

    files: list[str]
    tensors: int
    bytes: int
    left_out: int = 0


class Choice(NamedTuple):
    """Tensors to be written, under the names they get."""

    named: list[tuple[str, Leaf]]
    left_out: int = 0

    @property
    def size(self) -> int:
        return sum(leaf.size for _, leaf in self.named)


async def tree_in(store: Store, folder: Folder) -> tuple[Metadata, Whole]:
    """Of a checkpoint that is a tree, as all that are taken to another format must be."""
    metadata = await store.metadata(folder)
    where = f"{store.storage.url}/{store.root}/{folder.name}"
    part = await store.whole(folder)
    if part.kind == BYTES:
        raise InvalidInput(
            f"{where} is a state of bytes, and no other format has them: its file is {part.files[0].path}"
        )
    return metadata, part


def choose(
    part: Whole,
    keys: Keys | None = None,
    strip: str = "",
    *,
    rename: Callable[[str], str] = lambda name: name,
    tied_once: bool = False,
) -> Choice:
    """The tensors that match, without the beginning of their names that is to be stripped.

    `tied_once`: an array that is another one, too, is written under the first of its names alone.
    """
    kinds, leaves = array_kinds(part.skeleton), leaves_of(part)
    wants = chooser([leaf.name for leaf in leaves], keys) if keys else lambda name: True
    wanted = [leaf for leaf in leaves if wants(leaf.name)]
    tensors = [leaf for leaf in wanted if kinds[leaf.number] in PACKAGES]
    if not tensors:
        raise InvalidInput("no tensor of the checkpoint is to be exported")
    if strip and not any(leaf.name.startswith(strip) for leaf in tensors):
        raise InvalidInput(f"no name begins with {strip!r}; there are {', '.join(leaf.name for leaf in tensors[:5])}")
    if tied_once:
        first = _firsts(tensors)
        tensors = [leaf for leaf in tensors if not leaf.is_tied or leaf.number in first]
    named = [(rename(leaf.name.removeprefix(strip)), leaf) for leaf in tensors]
    _check_names(name for name, _ in named)
    for name, leaf in named:
        _check_dtype(name, leaf)
        check_leaf(part, leaf)
    return Choice(named, len(wanted) - sum(kinds[leaf.number] in PACKAGES for leaf in wanted))


def _firsts(leaves: Iterable[Leaf]) -> set[int]:
    """Of each tensor's names the first that is wanted: that may be one of its other names."""
    found: dict[int, int] = {}
    for leaf in leaves:
        if leaf.strides is None and not leaf.offset:
            found.setdefault(leaf.tensor, leaf.number)
    return set(found.values())


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or name == HEADER_NAME:
            raise InvalidInput(f"a tensor cannot be called {name!r}: strip less")
        if name in seen:
            raise InvalidInput(f"two tensors would be called {name!r}: strip less, or choose by keys")
        seen.add(name)


def _check_dtype(name: str, leaf: Leaf) -> None:
    dtype = dtype_of(leaf.dtype)
    if dtype.stored == "U8" and dtype.name != "uint8":
        raise InvalidInput(f"safetensors has no {leaf.dtype}, which {name!r} is of: leave it out by choosing keys")


async def export_safetensors(
    store: Store,
    folder: Folder,
    part: Whole,
    choice: Choice,
    target: StorageBackend,
    *,
    file: str = SINGLE,
    shard_bytes: int | None = None,
    meter: Meter = Meter(),  # noqa: B008  it holds nothing
) -> Exported:
    """One file of this name; or if there is more than `shard_bytes`, several and an index."""
    wanted = [Wanted(name, leaf.dtype, leaf.shape, leaf.size, n) for n, (name, leaf) in enumerate(choice.named)]
    plan = _shards(wanted, shard_bytes)
    names = [file] if len(plan) == 1 else _shard_names(len(plan))
    leaves = [leaf for _, leaf in choice.named]
    meter.expect(choice.size)
    async with marked(store, folder):
        assembler = Assembler(target, LeafSupply(store, part, leaves), meter.move)
        await assembler.write([leaf.outline for leaf in leaves], plan, names)
    if len(plan) > 1:
        await target.write(INDEX, _index(plan, names, choice.size))
        names.append(INDEX)
    return Exported(names, len(leaves), choice.size, choice.left_out)


def _shards(wanted: Sequence[Wanted], most: int | None) -> list[FilePlan]:
    """In order; a tensor that is larger than a shard has one for itself."""
    groups: list[list[Wanted]] = [[]]
    size = 0
    for each in wanted:
        if most is not None and groups[-1] and size + each.size > most:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size
    return [planned_file(group) for group in groups]


def _shard_names(count: int) -> list[str]:
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _index(plan: Sequence[FilePlan], names: Sequence[str], size: int) -> bytes:
    places = {placed.wanted.name: name for file, name in zip(plan, names, strict=True) for placed in file.placed}
    found = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    return msgspec.json.format(msgspec.json.encode(found)) + b"\n"
