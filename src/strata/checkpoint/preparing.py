"""A state taken apart, and the plan of its files. What cannot be stored is refused here, before anything is written."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from strata.checkpoint import manifest
from strata.checkpoint.plan import FilePlan, Wanted, plan_files
from strata.checkpoint.sources import Source, sources_of
from strata.checkpoint.ties import Stored, Tied, tie
from strata.checkpoint.tree import flatten
from strata.checkpoint.uncollected import uncollected


class Prepared(NamedTuple):
    """A state taken apart, and where its parts will go."""

    skeleton: Any
    leaves: list[int | manifest.Tied]
    stored: list[Stored]
    sources: list[Source]
    files: list[FilePlan]

    @property
    def on_gpu(self) -> bool:
        """Whether any of it is copied from a GPU that wants pinned memory."""
        return any(source.on_device and source.is_cuda for source in self.sources)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.stored)


class Planner:
    """Takes states apart; the plan of the last one is used again as long as the shapes stay."""

    def __init__(self) -> None:
        self._shapes: list[tuple[str, str, tuple[int, ...]]] = []
        self._files: list[FilePlan] = []

    def prepare(self, state: Any) -> Prepared:
        """Raises Unstorable for what cannot be saved, before anything is done."""
        with uncollected():
            flat = flatten(state)
            stored, tied = tie(flat.leaves)
            names = [leaf.name for leaf in flat.leaves]
            sources = sources_of(stored, flat.leaves)
            return Prepared(flat.skeleton, _leaves(names, tied, stored), stored, sources, self._plan(stored))

    def _plan(self, stored: Sequence[Stored]) -> list[FilePlan]:
        shapes = [(each.name, each.dtype, each.shape) for each in stored]
        if shapes != self._shapes:
            wanted = (Wanted(s.name, s.dtype, s.shape, s.size, n) for n, s in enumerate(stored))
            self._shapes, self._files = shapes, plan_files(wanted)
        return self._files


def _leaves(names: Sequence[str], tied: Sequence[Tied], stored: Sequence[Stored]) -> list[int | manifest.Tied]:
    made: list[int | manifest.Tied] = []
    for name, each in zip(names, tied, strict=True):
        if each.layout is not None:
            made.append(manifest.Tied(name, each.stored, *each.layout))
        elif stored[each.stored].name != name:
            made.append(manifest.Tied(name, each.stored))
        else:
            made.append(each.stored)
    return made
