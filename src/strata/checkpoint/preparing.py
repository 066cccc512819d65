"""A state taken apart, and the plan of its files. What cannot be stored is refused here, before anything is written."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from strata.checkpoint import manifest
from strata.checkpoint.plan import FilePlan, Wanted, plan_files
from strata.checkpoint.shares import ALONE, Crew
from strata.checkpoint.sources import Source, sources_of
from strata.checkpoint.ties import Stored, Tied, apart, tie, untied
from strata.checkpoint.tree import Leaf, flatten
from strata.checkpoint.uncollected import uncollected

Outline: TypeAlias = list[tuple[Any, ...]]
"""Name, type and shape of each, and which shares of it are written."""


class Prepared(NamedTuple):
    """A state taken apart, and where its parts will go."""

    skeleton: Any
    leaves: list[manifest.Leaf]
    stored: list[Stored]
    sources: list[Source]
    files: list[FilePlan]
    taken: list[Leaf]
    """The state's own arrays. They are let go of with the sources, while others wait for the disk."""

    def let_go(self) -> None:
        """All of it is copied: whoever has these arrays may have their memory back."""
        self.sources.clear()
        self.taken.clear()

    @property
    def on_gpu(self) -> bool:
        """Whether any of it is copied from a GPU that wants pinned memory."""
        return any(source.on_device and source.is_cuda for source in self.sources)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.stored)


class Planner:
    """Takes states apart; what was made of the last one is used again as long as the shapes stay."""

    def __init__(self, crew: Crew = ALONE) -> None:
        self.crew = crew
        # Each with what was made of it in one piece: another thread may take another state apart meanwhile.
        self._laid_out: tuple[Outline, _LaidOut] = ([], _LaidOut([], [], []))
        self._planned: tuple[Outline, list[FilePlan]] = ([], [])

    def prepare(self, state: Any) -> Prepared:
        """Raises Unstorable for what cannot be saved, before anything is done."""
        with uncollected():
            flat = flatten(state, crew=self.crew)
            leaves, stored, files = self._lay_out(flat.leaves)
            return Prepared(flat.skeleton, leaves, stored, sources_of(stored, flat.leaves), files, flat.leaves)

    def _lay_out(self, leaves: Sequence[Leaf]) -> "_LaidOut":
        """Where nothing shares memory, names, types and shapes are all there is to it."""
        if not apart(leaves):
            return self._tied(leaves)
        outline = _outline(leaves)
        known, laid_out = self._laid_out
        if outline != known:
            laid_out = self._untied(leaves)
            self._laid_out = (outline, laid_out)
        return laid_out

    def _untied(self, leaves: Sequence[Leaf]) -> "_LaidOut":
        stored = untied(leaves)
        return self._tied(leaves) if stored is None else _LaidOut([*range(len(stored))], stored, self._plan(stored))

    def _tied(self, leaves: Sequence[Leaf]) -> "_LaidOut":
        stored, tied = tie(leaves)
        return _LaidOut(_leaves(leaves, tied, stored), stored, self._plan(stored))

    def _plan(self, stored: Sequence[Stored]) -> list[FilePlan]:
        shapes: Outline = [(each.name, each.dtype, each.shape) for each in stored]
        known, files = self._planned
        if shapes != known:
            files = plan_files(Wanted(s.name, s.dtype, s.shape, s.size, n) for n, s in enumerate(stored))
            self._planned = (shapes, files)
        return files


class _LaidOut(NamedTuple):
    leaves: list[manifest.Leaf]
    stored: list[Stored]
    files: list[FilePlan]


def _outline(leaves: Sequence[Leaf]) -> Outline:
    return [
        (
            leaf.name,
            leaf.described.dtype,
            leaf.described.shape,
            None if leaf.shares is None else [share.box for share in leaf.shares],
        )
        for leaf in leaves
    ]


def _leaves(leaves: Sequence[Leaf], tied: Sequence[Tied], stored: Sequence[Stored]) -> list[manifest.Leaf]:
    made: list[manifest.Leaf] = []
    for leaf, each in zip(leaves, tied, strict=True):
        if each.shares is not None:
            made.append(manifest.Spread(leaf.name, leaf.described.dtype, leaf.described.shape, each.shares))
        elif each.layout is not None:
            made.append(manifest.Tied(leaf.name, each.stored, *each.layout))
        elif stored[each.stored].name != leaf.name:
            made.append(manifest.Tied(leaf.name, each.stored))
        else:
            made.append(each.stored)
    return made
