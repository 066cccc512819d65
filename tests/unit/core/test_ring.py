"""ring-v1: ownership from names alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core import mix
from strata.core.ring import Ring
from strata.errors import InvalidInput

NAMES = st.lists(st.text("abcxyz-019", min_size=1, max_size=4), unique=True, max_size=8)


def owned(ring: Ring, shard_count: int, seed: int) -> list[str]:
    return [ring.names[node] for node in ring.owners(shard_count, seed).tolist()]


def naive(names: list[str], virtual_nodes: int, shard_count: int, seed: int) -> list[str]:
    """Each shard goes to the first point at or after its key, on Python lists."""
    points = sorted(
        (point, name) for name in names for point in mix.subkeys(mix.name_key(name), np.arange(virtual_nodes)).tolist()
    )
    keys = mix.keys(seed, shard_count).tolist()
    return [next((name for point, name in points if point >= key), points[0][1]) for key in keys]


def test_golden_owners() -> None:
    assert "".join(owned(Ring(["a", "b", "c"], 8), 24, 42)) == "cbcbacbcbbacccbccbabbccb"
    assert Ring([f"worker-{index}" for index in range(4)]).owners(24, 7).tolist() == [
        *(2, 3, 0, 3, 2, 1, 1, 2, 3, 1, 1, 3),
        *(0, 0, 1, 1, 3, 0, 3, 2, 0, 2, 3, 0),
    ]


@given(NAMES.filter(bool), st.integers(1, 9), st.integers(0, 40), st.integers())
def test_it_is_what_the_law_says(names: list[str], virtual_nodes: int, shards: int, seed: int) -> None:
    assert owned(Ring(names, virtual_nodes), shards, seed) == naive(names, virtual_nodes, shards, seed)


@given(st.permutations(["a", "b", "c", "d", "e"]))
def test_the_order_of_names_does_not_matter(names: list[str]) -> None:
    assert owned(Ring(names, 5), 40, 3) == owned(Ring(sorted(names), 5), 40, 3)


@given(NAMES.filter(bool), st.text("mno", min_size=1, max_size=3))
def test_a_join_moves_into_the_newcomer_only_and_a_leave_undoes_it(names: list[str], newcomer: str) -> None:
    ring = Ring(names, 10)
    joined = ring.join(newcomer)
    before, after = owned(ring, 200, 1), owned(joined, 200, 1)
    assert after == owned(Ring([*names, newcomer], 10), 200, 1)
    assert {new for old, new in zip(before, after, strict=True) if old != new} <= {newcomer}
    back = joined.leave(newcomer)
    assert (back.names, owned(back, 200, 1)) == (ring.names, before)


def test_an_equal_point_goes_to_the_name_that_sorts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix, "name_key", lambda name: 7)
    assert set(owned(Ring(["b", "c", "a"], 4), 50, 1)) == {"a"}
    assert set(owned(Ring(["b", "c"], 4).join("a"), 50, 1)) == {"a"}
    assert set(owned(Ring(["a", "c"], 4).join("b"), 50, 1)) == {"a"}


def test_an_empty_ring_owns_nothing() -> None:
    empty = Ring(())
    assert empty.owners(3, 0).tolist() == [-1, -1, -1]
    assert owned(empty.join("a"), 3, 0) == ["a", "a", "a"]
    assert Ring(["a"]).leave("a").names == ()


def test_more_points_balance_better() -> None:
    names = [f"worker-{index}" for index in range(8)]
    spread = []
    for virtual_nodes in (1, 150):
        loads = np.bincount(Ring(names, virtual_nodes).owners(10_000, 0), minlength=8)
        spread.append(int(loads.max() - loads.min()))
    assert spread[1] * 4 < spread[0]


def test_wrong_input() -> None:
    with pytest.raises(InvalidInput, match="'a' is named twice"):
        Ring(["a", "b", "a"])
    with pytest.raises(InvalidInput, match="non-empty string, not 3"):
        Ring([3])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="non-empty string, not ''"):
        Ring(["a"]).join("")
    with pytest.raises(InvalidInput, match="'a' cannot join"):
        Ring(["a"]).join("a")
    with pytest.raises(InvalidInput, match="'b' cannot leave"):
        Ring(["a"]).leave("b")
    with pytest.raises(InvalidInput, match="virtual_nodes must be between 1"):
        Ring(["a"], 0)
    with pytest.raises(InvalidInput, match="shard_count must be at least 0"):
        Ring(["a"]).owners(-1, 0)
    with pytest.raises(InvalidInput, match="seed must be an integer"):
        Ring(["a"]).owners(1, "0")  # type: ignore[arg-type]
