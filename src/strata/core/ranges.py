"""Sets of integers kept as ranges: what an epoch has consumed, however much that is.

A set is one flat, strictly increasing list [start, end, start, end, ...] of half-open ranges. Ranges that touch are
merged, so equal sets have equal lists and an epoch done in order is a single range. Ranges only grow: nothing here
takes an integer out again; a rollback goes back to an older set.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from strata.errors import InvalidInput


class RangeSet:
    """A mutable set of integers made of disjoint half-open ranges, in ascending order."""

    __slots__ = ("_count", "_edges")

    def __init__(self) -> None:
        self._edges: list[int] = []
        self._count = 0

    @classmethod
    def from_flat(cls, flat: Sequence[int]) -> "RangeSet":
        """The set that `to_flat` wrote; a list that no set writes is refused."""
        edges = list(flat)
        if len(edges) % 2:
            raise InvalidInput(f"a flat range list has a start and an end for each range, not {len(edges)} numbers")
        if any(type(edge) is not int for edge in edges):
            raise InvalidInput("a flat range list holds integers only")
        for left, right in pairwise(edges):
            if left >= right:
                raise InvalidInput(f"a flat range list is strictly increasing, but {left} comes before {right}")
        found = cls()
        found._edges = edges
        found._count = sum(edges[1::2]) - sum(edges[::2])
        return found

    def to_flat(self) -> list[int]:
        """The ranges as [start, end, start, end, ...]: what the journal holds."""
        return self._edges.copy()

    @property
    def count(self) -> int:
        """How many integers are in the set."""
        return self._count

    def add(self, start: int, end: int) -> int:
        """Put [start, end) in, and say how many of them were new."""
        fresh = end - start - self.overlap(start, end)
        if start == end:
            return 0
        # An even index is outside every range. Looking left of `start` and right of `end` takes in the ranges that
        # merely touch, which is what merges them.
        left, right = bisect_left(self._edges, start), bisect_right(self._edges, end)
        self._edges[left:right] = [start] * (left % 2 == 0) + [end] * (right % 2 == 0)
        self._count += fresh
        return fresh

    def overlap(self, start: int, end: int) -> int:
        """How many integers of [start, end) are in the set."""
        inside = self._inside(start, end)
        return sum(inside[1::2]) - sum(inside[::2])

    def onward(self, place: int, most: int) -> list[int]:
        """The first ranges that end behind `place`, whole and flat, but no more than so many."""
        behind = bisect_right(self._edges, place)
        first = behind - behind % 2
        return self._edges[first : first + 2 * most]

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are not in the set, ascending."""
        edges = [start, *self._inside(start, end), end]
        return [(left, right) for left, right in zip(edges[::2], edges[1::2], strict=True) if left < right]

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is in the set."""
        return self.overlap(start, end) == end - start

    def union(self, other: "RangeSet") -> "RangeSet":
        """A new set of what is in either."""
        small, large = sorted((self, other), key=lambda each: len(each._edges))
        merged = large.copy()
        for start, end in small:
            merged.add(start, end)
        return merged

    def copy(self) -> "RangeSet":
        """A set of its own with the same ranges."""
        twin = RangeSet()
        twin._edges = self._edges.copy()
        twin._count = self._count
        return twin

    def _inside(self, start: int, end: int) -> list[int]:
        """The edges of the set cut down to [start, end)."""
        if start > end:
            raise InvalidInput(f"the range [{start}, {end}) ends before it starts")
        left, right = bisect_right(self._edges, start), bisect_left(self._edges, end)
        if left > right:  # only for an empty range that sits on an edge
            return []
        return [start] * (left % 2) + self._edges[left:right] + [end] * (right % 2)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._edges[::2], self._edges[1::2], strict=True)

    def __len__(self) -> int:
        """How many ranges there are, not how many integers: see `count`."""
        return len(self._edges) // 2

    def __eq__(self, other: object) -> bool:
        return self._edges == other._edges if isinstance(other, RangeSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __repr__(self) -> str:
        shown = ", ".join(f"[{start}, {end})" for start, end in list(self)[:8])
        return f"RangeSet({shown}{', ...' if len(self) > 8 else ''})"
