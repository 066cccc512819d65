"""From a committed checkpoint to a state: as new arrays, in place, or in the shape of a template.

Nothing is made or changed before it is known that everything fits. What is loaded in place is verified as it comes in:
if a chunk turns out to be damaged the error says so, and the arrays hold a mixture, which is said too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from strata.checkpoint import manifest
from strata.checkpoint.arrays import StoredArrays
from strata.checkpoint.boxes import Box
from strata.checkpoint.classes import in_classes_of
from strata.checkpoint.devices import Landing, box_landings, land, whole_landings
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block, Framework, Layout, framework_named, framework_of
from strata.checkpoint.frameworks.base import dense_strides
from strata.checkpoint.gathering import once, wishes_for
from strata.checkpoint.making import Making
from strata.checkpoint.manifest import Tensor
from strata.checkpoint.matching import LoadReport
from strata.checkpoint.pruning import pruned
from strata.checkpoint.reading import Placed, Scattered, Wish
from strata.checkpoint.runs import SMALL_BYTES, Run, runs_of
from strata.checkpoint.sharing import Target, agree, clashes
from strata.checkpoint.skeleton import array_kinds, value_numbers
from strata.checkpoint.slices import Index, box_of, inside, with_bytes
from strata.checkpoint.soundness import check_expanded
from strata.checkpoint.stateful import ArraySpec, Outline, lies_under
from strata.checkpoint.store import Store
from strata.checkpoint.ties import apart
from strata.checkpoint.tree import NOT_INSTEAD, VALUES, Leaf, flatten, unflatten
from strata.checkpoint.uncollected import uncollected
from strata.checkpoint.whole import Whole
from strata.errors import CheckpointDamaged, CheckpointMismatch, InvalidInput, NotFound, Unstorable

TOLD = 5


def names_of(whole: Whole) -> list[str]:
    """The names of all arrays, in the order of the skeleton."""
    return [leaf.name if isinstance(leaf, manifest.Tied) else whole.tensors[leaf].name for leaf in whole.leaves]


class StateLoader:
    """Loads the state of a checkpoint; `where` is what to call that."""

    def __init__(self, store: Store, whole: Whole, progress: Callable[[int], None], where: str) -> None:
        self._whole = whole
        self._arrays = StoredArrays(store, whole, progress, where)
        self._doubtful: list[tuple[int, Leaf]] = []

    async def bytes(self) -> bytes:
        """A state of bytes."""
        await self._arrays.check_lengths([0])
        await self._arrays.read({}, {0})
        return self._arrays.block(0).tobytes()

    async def tree(self, wants: Callable[[str], bool] | None = None) -> Any:
        """The state, with new arrays; only what is wanted, by name."""
        skeleton, leaves = self._whole.skeleton, self._whole.leaves
        tensors = {leaf.tensor if isinstance(leaf, manifest.Tied) else leaf for leaf in leaves}
        if wants is not None:
            numbers = {number for number, name in enumerate(names_of(self._whole)) if wants(name)}
            with self._arrays.making_sense():
                skeleton = pruned(skeleton, numbers.__contains__, wants)
            tensors = {self._arrays.tensor(number) for number in numbers}
        await self._arrays.check_lengths(tensors)
        await self._arrays.read({}, tensors)
        with uncollected(), self._arrays.making_sense():
            return unflatten(skeleton, self._arrays.array)

    async def into(self, state: Any, rename: Callable[[str], str], report: LoadReport, strictly: str | None) -> Any:
        """Fill the arrays of this state. Gives the checkpoint's tree, with these arrays in it.

        `strictly` is what to call the checkpoint in the error that tells what does not fit; None takes what does.
        """
        with uncollected():
            found = flatten(state, told="this cannot be loaded into").leaves
            pairs, new = self._pairs(found, rename, report, strictly)
        pairs = await self._agreeing(pairs, report, strictly)
        await self._fill(pairs, new)
        tree = self._tree_with({number: leaf.value for number, leaf in pairs}, new)
        return in_classes_of(state, tree, self._whole.skeleton)

    async def like(self, template: Any, rename: Callable[[str], str], report: LoadReport, strictly: str | None) -> Any:
        """New arrays, each of the package and on the device of its template, in the checkpoint's tree."""
        found = flatten(template, template=True, told="this is no template").leaves
        pairs, new = self._pairs(found, rename, report, strictly)
        self._arrays.check_expanded(number for number, _ in pairs)
        given: dict[int, Any] = {}
        same: dict[Any, int] = {}
        to_fill, to_make = [], []
        for number, leaf in pairs:
            first = number if self._arrays.is_view(number) else same.setdefault(self._alike(number, leaf), number)
            if first != number:  # tied again, as they were
                continue
            given[number] = leaf.framework.empty_like(leaf.value)
            if given[number] is None:
                to_make.append((number, leaf))
            else:
                to_fill.append((number, _leaf(leaf.name, given[number])))
        await self._fill(to_fill, [*(number for number, _ in to_make if self._arrays.is_view(number)), *new])
        given |= await self._made_like(to_make)
        for number, leaf in pairs:
            if number not in given:
                given[number] = given[same[self._alike(number, leaf)]]
        return in_classes_of(template, self._tree_with(given, new), self._whole.skeleton)

    def _alike(self, number: int, leaf: Leaf) -> Any:
        where, layout = getattr(leaf.value, "device", None), getattr(leaf.value, "placements", None)
        sharding = getattr(leaf.value, "sharding", None)
        return self._arrays.tensor(number), type(leaf.value), str(where), str(layout), sharding

    async def _made_like(self, templates: Sequence[tuple[int, Leaf]]) -> dict[int, Any]:
        """New arrays of packages whose arrays cannot be filled: of each only those boxes are read that lie here."""
        await self._arrays.check_lengths([self._arrays.tensor(number) for number, _ in templates])
        making = Making(self._whole)
        for number, leaf in templates:
            boxes = leaf.framework.boxes_like(leaf.value)
            if self._arrays.is_view(number):
                making.cut(number, boxes, self._arrays.elements(number))
            else:
                making.read(number, boxes, self._arrays.tensor(number))
        await self._arrays.reader.read(making.wishes())
        return {number: leaf.framework.make_like(leaf.value, making.blocks[number]) for number, leaf in templates}

    def _pairs(
        self, found: Iterable[Leaf], rename: Callable[[str], str], report: LoadReport, strictly: str | None
    ) -> tuple[list[tuple[int, Leaf]], list[int]]:
        """Which array of the checkpoint goes where, and which are no arrays here. CheckpointMismatch if anything does
        not fit, with nothing changed or made."""
        pairs = self._fitting([rename(name) for name in names_of(self._whole)], list(found), report)
        values = self._values()
        own = self._sound([pair for pair in pairs if pair[0] not in values], report)
        _check(report, strictly)
        return own, [number for number, _ in pairs if number in values]

    def _tree_with(self, given: Mapping[int, Any], new: Iterable[int]) -> Any:
        """The checkpoint's, with these arrays and values."""
        placed = {**given, **dict.fromkeys(new, NOT_INSTEAD)}
        skeleton = self._whole.skeleton
        with uncollected(), self._arrays.making_sense():
            if len(placed) < len(self._whole.leaves):
                skeleton = pruned(skeleton, placed.__contains__, lambda name: True)
            return unflatten(skeleton, self._arrays.array, lambda number, _: placed[number])

    def outline(self, rename: Callable[[str], str], report: LoadReport) -> Outline:
        """What there is, before any of it is read."""
        names, arrays = names_of(self._whole), {}

        def outlined(number: int, kind: str) -> ArraySpec:
            dtype, shape = self._arrays.described(number)
            tensor, digest = self._arrays.tensor(number), self._arrays.digest(number)
            found = ArraySpec(names[number], dtype, shape, tensor, kind, digest, self._arrays.is_spread(number))
            arrays[number] = found
            return found

        with self._arrays.making_sense():
            tree = unflatten(self._whole.skeleton, self._arrays.array, outlined)
        return Outline(tree, list(arrays.values()), rename, report, frozenset(self._whole.others))

    async def fill(self, targets: Mapping[str, Any], report: LoadReport, strictly: str | None) -> Any:
        """Fill these arrays, by name in the checkpoint, and make a new one for each None. Gives the checkpoint's tree:
        None is in the place of arrays that are not named here, or do not fit."""
        wanted = [(number, name) for number, name in enumerate(names_of(self._whole)) if name in targets]
        own = [(number, _leaf(name, targets[name])) for number, name in wanted if targets[name] is not None]
        pairs = self._sound(own, report)
        _check(report, strictly)
        pairs = await self._agreeing(pairs, report, strictly)
        new = [number for number, name in wanted if targets[name] is None]
        await self._fill(pairs, new)
        given = {number: leaf.value for number, leaf in pairs}
        made = dict.fromkeys(new, NOT_INSTEAD)
        with self._arrays.making_sense():
            return unflatten(
                self._whole.skeleton, self._arrays.array, lambda number, _: made.get(number, given.get(number))
            )

    async def _fill(self, targets: Sequence[tuple[int, Leaf]], new: Sequence[int] = ()) -> None:
        """Into the arrays' own memory where that can be, to devices where they are there, and through memory of our own
        where they lie in some other way. What is `new` is read into our own memory, for `_array` to use."""
        with uncollected():
            scattered, others = self._scattered(targets)
        await self._arrays.check_lengths(
            [*(self._arrays.tensor(number) for number, _ in targets), *map(self._arrays.tensor, new)]
        )
        ways = _Ways(self._whole)
        for number, leaf in others:
            ways.add(number, self._arrays.tensor(number), leaf, is_view=self._arrays.is_view(number))
        in_pieces = [leaf for _, leaf in others if leaf.described.shards is not None]
        whole = [leaf for _, leaf in ways.later if leaf.described.shards is None]
        _check_changeable([*in_pieces, *ways.staged, *whole])
        self._arrays.check_expanded(number for number, _ in ways.later)
        needed = {self._arrays.tensor(number) for number in (*(number for number, _ in ways.later), *new)}
        try:
            await self._arrays.read(ways.blocks, needed - ways.blocks.keys(), [*scattered, *once(ways.wishes)])
            await land(self._arrays.reader, ways.landings)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{error}. What it was loaded into is a mixture now: do not train on it") from error
        for number, leaf in ways.later:
            if leaf.described.shards is None:
                leaf.framework.copy_in(leaf.value, self._arrays.dense(number))
                continue
            for piece in leaf.described.shards.pieces:
                box = Box(piece.at, tuple(piece.value.shape))
                found = self._arrays.elements(number)[box.within(Box.whole(box.shape))]
                leaf.framework.copy_in(piece.value, np.ascontiguousarray(found).reshape(-1))

    def _scattered(self, targets: Sequence[tuple[int, Leaf]]) -> tuple[list[Scattered], list[tuple[int, Leaf]]]:
        """Runs of small tensors that have one name each, for arrays to whose memory they can be copied; the others."""
        tensors, leaves = self._whole.tensors, self._whole.leaves
        tied = {leaf.tensor for leaf in leaves if isinstance(leaf, manifest.Tied)}
        small: dict[int, tuple[int, Leaf]] = {}
        others: list[tuple[int, Leaf]] = []
        for pair in targets:
            tensor, leaf = leaves[pair[0]], pair[1]
            fits = leaf.described.is_dense and leaf.described.size <= SMALL_BYTES
            if fits and isinstance(tensor, int) and tensor not in tied and leaf.framework.is_writable(leaf.value):
                small[tensor] = pair
            else:
                others.append(pair)
        runs, alone = runs_of(tensors, small)
        found = [_scattered(tensors, run, [small[number][1] for number in run.numbers]) for run in runs]
        return found, others + [small[number] for number in alone]

    async def slice(self, name: str, index: Index) -> Any:
        """A part of one array, as an array of the package it was saved from."""
        names = names_of(self._whole)
        if name not in names:
            near = get_close_matches(name, names, 3)
            raise NotFound(f"the checkpoint has no tensor {name!r}" + (f"; there is {', '.join(near)}" if near else ""))
        number = names.index(name)
        dtype, shape = self._arrays.described(number)
        box = box_of(shape, index)
        await self._arrays.check_lengths([self._arrays.tensor(number)])
        if self._arrays.is_view(number):
            found = (await self._arrays.all(number))[with_bytes(index)]
        else:
            found = (await self._arrays.some(number, box))[with_bytes(inside(shape, index))]
        check_expanded(name, found.nbytes, self._arrays.stored_bytes(number))
        part = np.ascontiguousarray(found)
        with self._arrays.making_sense():
            kind = array_kinds(self._whole.skeleton)[number]
            package = framework_named("numpy" if kind in VALUES else kind)
            return package.make(dtype, part.shape[:-1], part.reshape(-1))

    def _fitting(self, names: list[str], found: list[Leaf], report: LoadReport) -> list[tuple[int, Leaf]]:
        """Which array of the checkpoint goes where; what does not fit is reported."""
        if names == [leaf.name for leaf in found]:
            return list(enumerate(found))
        leaves = {leaf.name: leaf for leaf in found}
        pairs = []
        for number, name in enumerate(names):
            leaf = leaves.get(name)
            if leaf is None:
                report.unexpected.append(name)
                continue
            pairs.append((number, leaf))
        there = set(names)
        others = self._whole.others
        report.missing += [name for name in leaves if name not in there and not lies_under(name, others)]
        return pairs

    def _values(self) -> set[int]:
        """What is stored as an array, and is none."""
        with self._arrays.making_sense():
            return value_numbers(self._whole.skeleton)

    def _sound(self, pairs: Sequence[tuple[int, Leaf]], report: LoadReport) -> list[tuple[int, Leaf]]:
        """Those of the same type and shape; and of several that are one array here, those that are one there."""
        found = []
        for number, leaf in pairs:
            described, stored = leaf.described, self._arrays.described(number)
            if (described.dtype, described.shape) == stored:
                found.append((number, leaf))
                continue
            told = f"{described.dtype}{list(described.shape)}"
            there = f"{stored[0]}{list(stored[1])}"
            report.mismatched.append(f"{leaf.name} ({there} in the checkpoint, {told} here)")
        return found if apart([leaf for _, leaf in found]) else self._tied_alike(found, report)

    def _tied_alike(self, pairs: Sequence[tuple[int, Leaf]], report: LoadReport) -> list[tuple[int, Leaf]]:
        """Those that are one array here must be one there. Of those that only share memory it is not known yet."""
        refused: set[int] = set()
        doubtful: set[int] = set()
        for first, second, is_same in clashes([self._target(*pair) for pair in pairs]):
            if not is_same:
                doubtful |= {first, second}
            elif first not in refused and second not in refused:
                refused.add(second)
                told = f"one array with {pairs[first][1].name} here, two in the checkpoint"
                report.mismatched.append(f"{pairs[second][1].name} ({told})")
        self._doubtful = [pairs[place] for place in sorted(doubtful - refused)]
        return [pair for place, pair in enumerate(pairs) if place not in refused]

    async def _agreeing(
        self, pairs: list[tuple[int, Leaf]], report: LoadReport, strictly: str | None
    ) -> list[tuple[int, Leaf]]:
        """Those that can all be filled: what is shared here, and stored apart, is read and compared before."""
        if not self._doubtful:
            return pairs
        self._arrays.check_expanded(number for number, _ in self._doubtful)
        tensors = {self._arrays.tensor(number) for number, _ in self._doubtful}
        await self._arrays.check_lengths(tensors)
        await self._arrays.read({}, tensors)
        targets = [self._target(*pair) for pair in self._doubtful]
        told = agree(targets, [self._arrays.elements(number) for number, _ in self._doubtful])
        refused = {number for (number, _), fits in zip(self._doubtful, told, strict=True) if not fits}
        report.mismatched += [
            f"{leaf.name} (shares memory with another array here, which has other values for it in the checkpoint)"
            for number, leaf in pairs
            if number in refused
        ]
        _check(report, strictly)
        return [pair for pair in pairs if pair[0] not in refused]

    def _target(self, number: int, leaf: Leaf) -> Target:
        there = self._whole.leaves[number]
        dtype, shape = self._arrays.described(number)
        if isinstance(there, manifest.Tied) and there.offset is not None:
            return Target(leaf, there.tensor, Layout(dtype, shape, there.offset, there.strides))
        return Target(
            leaf, self._arrays.tensor(number), Layout(dtype, shape, 0, dense_strides(shape, dtype_of(dtype).bytes))
        )


class _Ways:
    """How arrays are filled, each in the way that it can be."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self.blocks: dict[int, Block] = {}
        """Memory that takes all of a tensor, by its number."""
        self.wishes: list[Wish | Placed] = []
        self.landings: list[Landing] = []
        self.staged: list[Leaf] = []
        """Whose elements come through memory of our own, a little at a time."""
        self.later: list[tuple[int, Leaf]] = []
        """Whose elements come from tensors that are read before."""
        self._taken: set[int] = set()

    def add(self, number: int, tensor: int, leaf: Leaf, *, is_view: bool) -> None:
        framework, shards = leaf.framework, leaf.described.shards
        if is_view:
            self.later.append((number, leaf))
        elif shards is not None:
            for piece in shards.pieces:
                self._add_box(tensor, leaf, piece.value, Box(piece.at, tuple(piece.value.shape)))
        elif tensor not in self._taken and self._add_whole(tensor, framework, leaf.value):
            self._taken.add(tensor)
        elif leaf.described.on_device and framework.part(leaf.value, ()) is not None:
            self._add_box(tensor, leaf, leaf.value, Box.whole(leaf.described.shape))
        else:
            self.later.append((number, leaf))

    def _add_whole(self, tensor: int, framework: Framework, value: Any) -> bool:
        """Whether an array takes all of a tensor as it is stored."""
        memory = framework.memory(value)
        if memory is not None:
            self.blocks[tensor] = memory
            return True
        there = None if tensor in self._whole.boxes else framework.device_bytes(value)
        if there is not None:
            self.landings += whole_landings(self._whole.tensors[tensor], framework, there)
        return there is not None

    def _add_box(self, tensor: int, leaf: Leaf, value: Any, box: Box) -> None:
        if not box.size:
            return
        told, pieces, memory = self._whole.tensors[tensor], self._whole.boxes.get(tensor), leaf.framework.memory(value)
        if memory is not None:
            self.wishes += wishes_for(told, pieces, box, memory)
            return
        self.landings += box_landings(told, pieces, leaf.framework, value, box)
        self.staged.append(Leaf(leaf.name, value, leaf.framework, leaf.described))


def _scattered(tensors: Sequence[Tensor], run: Run, leaves: Sequence[Leaf]) -> Scattered:
    addresses = np.array([leaf.described.start for leaf in leaves], np.int64)
    return Scattered([tensors[number] for number in run.numbers], addresses, [leaf.value for leaf in leaves])


def _leaf(name: str, value: Any) -> Leaf:
    framework = framework_of(value)
    if framework is None:
        raise InvalidInput(f"{name}: a {type(value).__name__} cannot be filled: only an array can")
    return Leaf(name, value, framework, framework.describe(value))


def is_changeable(state: Any) -> bool:
    """Whether all of its arrays can be filled where they lie."""
    with uncollected():
        leaves = flatten(state, told="this cannot be loaded into").leaves
    return not any(leaf.framework.refusal(leaf.value) for leaf in leaves)


def _check_changeable(leaves: Iterable[Leaf]) -> None:
    """Unstorable, naming those that cannot be filled, before any is."""
    found = [(leaf.name, why) for leaf in leaves if (why := leaf.framework.refusal(leaf.value))]
    if found:
        more = f"; and {len(found) - TOLD} more" if len(found) > TOLD else ""
        raise Unstorable("nothing was loaded. " + "; ".join(f"{name}: {why}" for name, why in found[:TOLD]) + more)


def _check(report: LoadReport, strictly: str | None) -> None:
    if strictly is not None and report:
        raise CheckpointMismatch(
            f"{strictly} does not fit what it is loaded into: {report}. Load with strict=False to take the rest"
        )
