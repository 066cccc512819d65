"""Where the elements of a dimension lie that processes share, by how it is cut for them. Pure.

A mesh of processes has dimensions of its own, and each of them may cut a dimension of the array: into as many parts as
it is long, the first ones of equal length, as `torch.chunk` makes them. Where several cut the same one, one after the
other, a cut may say by a factor that it takes some of every such part of what is there, as if others, that stand behind
it, had cut before. FSDP on top of tensor parallelism says so, since that is the order in which it cuts.

The law: where the factors are those of an order, that order is what was done, and each process has one span. With sizes
that divide evenly both readings are the same; with others only one of them is where FSDP put the elements.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple


class Cut(NamedTuple):
    """By a dimension of the mesh: into so many parts, of which this process has one."""

    parts: int
    own: int
    factor: int = 1


class Span(NamedTuple):
    """Elements one after the other: the first, and how many."""

    at: int
    length: int


def spans_of(length: int, cuts: Sequence[Cut]) -> list[Span]:
    """Those that this process has of a dimension, in the order in which it has them. `cuts` are in that of the mesh."""
    order = _order(cuts)
    if order is None:
        return _interleaved(length, cuts)
    found = Span(0, length)
    for place in order:
        found = _part(found, cuts[place].parts, cuts[place].own)
    return [found]


def _order(cuts: Sequence[Cut]) -> list[int] | None:
    """In which the cuts were made: the factor of each is how many parts those behind it had made before. None if there
    is no such order."""
    order: list[int] = []
    for place in reversed(range(len(cuts))):
        before = (prod(cuts[each].parts for each in order[:count]) for count in range(len(order) + 1))
        fitting = next((count for count, parts in enumerate(before) if parts == cuts[place].factor), None)
        if fitting is None:
            return None
        order.insert(fitting, place)
    return order


def _interleaved(length: int, cuts: Sequence[Cut]) -> list[Span]:
    """One cut after the other, each of what the one before left."""
    found = [Span(0, length)]
    for cut in cuts:
        there = sum(span.length for span in found)
        parts = [_part(Span(0, there), cut.factor, number) for number in range(cut.factor)]
        found = [each for part in parts for each in _within(found, _part(part, cut.parts, cut.own))]
    return _joined(found)


def _part(span: Span, parts: int, own: int) -> Span:
    most = -(-span.length // parts)
    start = min(own * most, span.length)
    return Span(span.at + start, min(most, span.length - start))


def _within(spans: Sequence[Span], wanted: Span) -> list[Span]:
    """What of these, counted through, is wanted."""
    found, counted = [], 0
    for span in spans:
        first, last = max(wanted.at, counted), min(wanted.at + wanted.length, counted + span.length)
        if first < last:
            found.append(Span(span.at + first - counted, last - first))
        counted += span.length
    return found


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Neighbours are one."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].at + found[-1].length == span.at:
            found[-1] = Span(found[-1].at, found[-1].length + span.length)
        else:
            found.append(span)
    return found or [Span(0, 0)]
