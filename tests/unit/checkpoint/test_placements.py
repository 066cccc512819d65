"""Where elements lie: as torch cuts them, in whatever order, and each on one process."""

from itertools import permutations, product
from math import prod

import pytest
import torch
from torch.distributed.tensor.placement_types import _StridedShard

from strata.checkpoint.frameworks.placements import Cut, Span, spans_of


def elements(spans: list[Span]) -> list[int]:
    return [each for at, length in spans for each in range(at, at + length)]


@pytest.mark.parametrize("mesh", [(4,), (3, 2), (2, 3), (3, 4), (2, 2, 2), (2, 1, 3)])
def test_cuts_in_any_order_are_found_by_their_factors(mesh: tuple[int, ...]) -> None:
    for order, length in product(permutations(range(len(mesh))), range(30)):
        factors = [prod(mesh[other] for other in order[: order.index(own)] if other > own) for own in range(len(mesh))]
        for place in product(*map(range, mesh)):
            expected = torch.arange(length)
            for each in order:
                parts = expected.chunk(mesh[each])
                expected = parts[place[each]] if place[each] < len(parts) else expected[:0]
            found = spans_of(length, list(map(Cut, mesh, place, factors)))
            assert elements(found) == expected.tolist(), (order, length, place)
            assert len(found) == 1


@pytest.mark.parametrize(("parts", "factor"), [(2, 2), (3, 2), (2, 3), (4, 5)])
def test_what_no_order_explains_is_interleaved(parts: int, factor: int) -> None:
    for length in range(25):
        expected, _ = _StridedShard(0, split_factor=factor)._split_tensor(
            torch.arange(length), parts, with_padding=False
        )
        for own in range(parts):
            assert elements(spans_of(length, [Cut(parts, own, factor)])) == expected[own].tolist()


def test_an_interleaved_cut_of_a_cut() -> None:
    found = [spans_of(8, [Cut(2, first), Cut(2, second, 2)]) for first, second in product(range(2), repeat=2)]
    assert list(map(elements, found)) == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_neighbours_are_one_span() -> None:
    assert spans_of(8, [Cut(1, 0, 4)]) == [Span(0, 8)]
    assert spans_of(0, [Cut(2, 1, 3)]) == [Span(0, 0)]
