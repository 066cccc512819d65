"""From a committed checkpoint to a state: as new arrays, in place, or in the shape of a template.

Nothing is made or changed before it is known that everything fits. What is loaded in place is verified as it comes in:
if a chunk turns out to be damaged the error says so, and the arrays hold a mixture, which is said too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strata.checkpoint import manifest
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block, Framework, Layout, framework_named
from strata.checkpoint.manifest import Part
from strata.checkpoint.matching import LoadReport
from strata.checkpoint.memory import Memory
from strata.checkpoint.pruning import pruned
from strata.checkpoint.reading import ChunkReader, Wish
from strata.checkpoint.store import Store
from strata.checkpoint.tree import Leaf, flatten, unflatten
from strata.checkpoint.uncollected import uncollected
from strata.errors import CheckpointDamaged, CheckpointMismatch


def names_of(part: Part) -> list[str]:
    """The names of all arrays of a part, in the order of the skeleton."""
    return [leaf.name if isinstance(leaf, manifest.Tied) else part.tensors[leaf].name for leaf in part.leaves]


class PartLoader:
    """Loads one part of a checkpoint."""

    def __init__(self, store: Store, part: Part, progress: Callable[[int], None]) -> None:
        self._store, self._part = store, part
        self._reader = ChunkReader(store, part.files, progress)
        self._blocks: dict[int, Block] = {}
        self._made: dict[tuple[int, str], Any] = {}

    async def bytes(self) -> bytes:
        """A state of bytes."""
        (tensor,) = self._part.tensors
        block = Memory().take(tensor)
        await self._read({0: block})
        return block.tobytes()

    async def tree(self, wants: Callable[[str], bool] | None = None) -> Any:
        """The state, with new arrays; only what is wanted, by name."""
        names, everything = names_of(self._part), wants is None
        wants = wants or (lambda name: True)
        numbers = [n for n, name in enumerate(names) if wants(name)]
        memory = Memory()
        with uncollected():
            blocks = {t: memory.take(self._part.tensors[t]) for t in {self._tensor(n) for n in numbers}}
        await self._read(blocks)
        kept = set(numbers)
        skeleton = self._part.skeleton if everything else pruned(self._part.skeleton, kept.__contains__, wants)
        with uncollected():
            return unflatten(skeleton, self._array)

    async def into(self, state: Any, rename: Callable[[str], str], report: LoadReport, strictly: str | None) -> Any:
        """Fill the arrays of this state. Gives the checkpoint's tree, with these arrays in it.

        `strictly` is what to call the checkpoint in the error that tells what does not fit; None takes what does.
        """
        leaves = {leaf.name: leaf for leaf in flatten(state).leaves}
        names = [rename(name) for name in names_of(self._part)]
        pairs = self._fitting(names, leaves, report)
        if strictly is not None and report:
            raise CheckpointMismatch(
                f"{strictly} does not fit what it is loaded into: {report}. Load with strict=False to take the rest"
            )
        blocks: dict[int, Block] = {}
        later: list[tuple[Leaf, int]] = []
        for number, leaf in pairs:
            tensor = self._tensor(number)
            own = None if self._is_view(number) else leaf.framework.memory(leaf.value)
            if own is not None and tensor not in blocks:
                blocks[tensor] = own
            else:
                later.append((leaf, number))
        memory = Memory()
        for _, number in later:
            tensor = self._tensor(number)
            if tensor not in blocks:
                blocks[tensor] = memory.take(self._part.tensors[tensor])
        await self._read(blocks)
        for leaf, number in later:
            leaf.framework.copy_in(leaf.value, self._elements(number))
        given = {number: leaf.value for number, leaf in pairs}
        skeleton = pruned(self._part.skeleton, given.__contains__, lambda name: True)
        return unflatten(skeleton, lambda number, _: given[number])

    def _fitting(self, names: Sequence[str], leaves: dict[str, Leaf], report: LoadReport) -> list[tuple[int, Leaf]]:
        """Which array of the checkpoint goes where; what does not fit is reported."""
        pairs = []
        for number, name in enumerate(names):
            leaf = leaves.get(name)
            if leaf is None:
                report.unexpected.append(name)
                continue
            dtype, shape = self._described(number)
            if (leaf.described.dtype, leaf.described.shape) != (dtype, shape):
                told = f"{leaf.described.dtype}{list(leaf.described.shape)}"
                report.mismatched.append(f"{name} ({dtype}{list(shape)} in the checkpoint, {told} here)")
                continue
            pairs.append((number, leaf))
        there = set(names)
        report.missing += [name for name in leaves if name not in there]
        return pairs

    # -- arrays ------------------------------------------------------------------------------------------------------

    def _tensor(self, number: int) -> int:
        leaf = self._part.leaves[number]
        return leaf.tensor if isinstance(leaf, manifest.Tied) else leaf

    def _is_view(self, number: int) -> bool:
        leaf = self._part.leaves[number]
        return isinstance(leaf, manifest.Tied) and leaf.offset is not None

    def _described(self, number: int) -> tuple[str, tuple[int, ...]]:
        leaf = self._part.leaves[number]
        if isinstance(leaf, manifest.Tied) and leaf.offset is not None:
            return leaf.dtype, leaf.shape
        tensor = self._part.tensors[self._tensor(number)]
        return tensor.dtype, tensor.shape

    def _array(self, number: int, package: str) -> Any:
        leaf, framework = self._part.leaves[number], framework_named(package)
        tensor = self._tensor(number)
        if isinstance(leaf, manifest.Tied) and leaf.offset is not None:
            return self._view(leaf, tensor, framework)
        known = self._made.get((tensor, package))
        if known is None:
            told = self._part.tensors[tensor]
            known = self._made[tensor, package] = framework.make(told.dtype, told.shape, self._blocks[tensor])
        return known

    def _view(self, leaf: manifest.Tied, tensor: int, framework: Framework) -> Any:
        assert leaf.offset is not None
        return framework.view(Layout(leaf.dtype, leaf.shape, leaf.offset, leaf.strides), self._blocks[tensor])

    def _elements(self, number: int) -> Block:
        """Those of one array, in order and without gaps."""
        leaf, block = self._part.leaves[number], self._blocks[self._tensor(number)]
        if not (isinstance(leaf, manifest.Tied) and leaf.offset is not None):
            return block
        item = dtype_of(leaf.dtype).bytes
        raw = np.ndarray((*leaf.shape, item), np.uint8, buffer=block, offset=leaf.offset, strides=(*leaf.strides, 1))
        return np.ascontiguousarray(raw).reshape(-1)

    async def _read(self, blocks: dict[int, Block]) -> None:
        self._blocks = blocks
        with uncollected():
            wishes = [
                Wish(chunk, self._part.tensors[number].name, target)
                for number, block in blocks.items()
                for chunk, target in _cut(self._part.tensors[number], block)
            ]
        await self._reader.read(wishes)


def _cut(tensor: manifest.Tensor, block: Block) -> list[tuple[manifest.Chunk, Block]]:
    """The memory of each chunk."""
    found, at = [], 0
    for chunk in tensor.chunks:
        found.append((chunk, block[at : at + chunk.size]))
        at += chunk.size
    if at != block.size:
        raise CheckpointDamaged(
            f"tensor {tensor.name!r} has {at:,} bytes in the manifest, and its shape needs {len(block):,}"
        )
    return found
