"""feistel-v1: keyed permutations of [0, size) that give any position on demand.

A position is a cell of a grid, nearly square and hardly larger than the size; row and column take turns at shifting
each other by a keyed amount, a Feistel network. A cell beyond the size goes through again until it falls inside
(cycle walking; the grid fits so closely that this is rare). So a permutation of any size is a few words, not an array,
and runs backwards as easily. Golden vectors in the tests pin it: another result is another algorithm and needs another
name. Integers only; not fit for secrets.
"""

from math import isqrt
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from strata.core import mix
from strata.core.ids import check_int
from strata.core.mix import Keys
from strata.errors import InvalidInput

ALGORITHM = "feistel-v1"

MAX_SIZE = 2**62
"""Each side of the grid then fits 31 bits, and a product of it with 32 bits fits 64."""

Positions = NDArray[np.int64]

CHUNK = 32768
"""Positions taken at a time, so that all that a round touches stays in cache. Changes no result."""

_FIRST = np.uint64(0x9FB21C651E98DF25)
_SECOND = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


class Permutation:
    """One permutation of [0, size), chosen by a 64-bit key."""

    __slots__ = ("_round_keys", "size")

    def __init__(self, size: int, key: int) -> None:
        self.size = check_int(size, "permutation size", most=MAX_SIZE)
        self._round_keys = _round_keys(size, np.array([key], dtype=np.uint64))

    def at(self, positions: Positions) -> Positions:
        """What stands at these positions."""
        return _permuted(_forward, self.size, self._round_keys, positions)

    def position_of(self, values: Positions) -> Positions:
        """Where these values stand: the inverse of `at`."""
        return _permuted(_backward, self.size, self._round_keys, values)


def at_keys(size: int, keys: Keys, positions: Positions) -> Positions:
    """What stands at each position of its own permutation: `Permutation(size, keys[i]).at(positions[i])` for all i."""
    check_int(size, "permutation size", most=MAX_SIZE)
    if keys.ndim != 1 or keys.shape != positions.shape:
        raise InvalidInput(f"one key for each position is needed, not {keys.shape} keys for {positions.shape}")
    return _permuted(_forward, size, _round_keys(size, keys), positions)


def check_inside(values: Positions, what: str, size: int) -> None:
    """InvalidInput if any value is outside [0, size): it would be computed on, and give a plausible wrong answer."""
    if values.size and (values.min() < 0 or values.max() >= size):
        raise InvalidInput(f"{what} must be at least 0 and below {size}, not {values.min()} to {values.max()}")


class _Grid(NamedTuple):
    """The cells that the network permutes. No side is shorter than 2, so that each has something to shift."""

    rows: np.uint64
    columns: np.uint64


class _Network(Protocol):
    """The rounds, forwards or backwards."""

    def __call__(self, cells: Keys, round_keys: Keys, grid: _Grid) -> Keys: ...


def _grid(size: int) -> _Grid:
    columns = max(2, isqrt(max(0, size - 1)) + 1)
    return _Grid(rows=np.uint64(max(2, -(-size // columns))), columns=np.uint64(columns))


def _rounds(size: int) -> int:
    """Two to four more than the most at which bias was still seen, over a million keys: in the counts of whole
    permutations (sizes to 6), of where three positions go (to 100) and of where two go (to 1024). Short sides mix
    slowly.
    """
    if size <= 9:
        return 24
    return 12 if size <= 36 else 8


def _round_keys(size: int, keys: Keys) -> Keys:
    """A row of keys for each round."""
    return mix.subkeys(keys, np.arange(_rounds(size), dtype=np.int64)[:, None])


def _permuted(network: _Network, size: int, round_keys: Keys, positions: Positions) -> Positions:
    check_inside(positions, "positions", size)
    cells = positions.ravel().astype(np.uint64)
    for start in range(0, len(cells), CHUNK):
        part = slice(start, start + CHUNK)
        cells[part] = _walked(network, size, _keys_for(round_keys, part), cells[part])
    return cells.astype(np.int64).reshape(positions.shape)


def _walked(network: _Network, size: int, round_keys: Keys, cells: Keys) -> Keys:
    """Through the network as often as each cell needs to fall inside, as it must: it began inside, on a cycle."""
    grid, limit = _grid(size), np.uint64(size)
    cells = network(cells, round_keys, grid)
    stray = np.flatnonzero(cells >= limit)
    while len(stray):
        again = network(cells[stray], _keys_for(round_keys, stray), grid)
        cells[stray] = again
        stray = stray[again >= limit]
    return cells


def _keys_for(round_keys: Keys, chosen: slice | NDArray[np.intp]) -> Keys:
    """The round keys of some of the positions; a single key is everybody's."""
    return round_keys if round_keys.shape[1] == 1 else round_keys[:, chosen]


def _forward(cells: Keys, round_keys: Keys, grid: _Grid) -> Keys:
    row, column = _split(cells, grid)
    for number, key in enumerate(round_keys):
        if number % 2 == 0:
            row = _sum(row, _shift(column, key, grid.rows), grid.rows)
        else:
            column = _sum(column, _shift(row, key, grid.columns), grid.columns)
    return row * grid.columns + column


def _backward(cells: Keys, round_keys: Keys, grid: _Grid) -> Keys:
    row, column = _split(cells, grid)
    for number in reversed(range(len(round_keys))):
        if number % 2 == 0:
            row = _sum(row, grid.rows - _shift(column, round_keys[number], grid.rows), grid.rows)
        else:
            column = _sum(column, grid.columns - _shift(row, round_keys[number], grid.columns), grid.columns)
    return row * grid.columns + column


def _split(cells: Keys, grid: _Grid) -> tuple[Keys, Keys]:
    row = cells // grid.columns
    return row, cells - row * grid.columns


def _shift(half: Keys, key: Keys, side: np.uint64) -> Keys:
    """A number below `side` that depends on every bit of the half and of the key."""
    mixed = half + key
    mixed *= _FIRST
    mixed ^= mixed >> _HALF
    mixed *= _SECOND
    mixed >>= _HALF
    mixed *= side
    mixed >>= _HALF
    return mixed


def _sum(half: Keys, shift: Keys, side: np.uint64) -> Keys:
    """half + shift modulo `side`, in the place of `shift`."""
    shift += half
    # A sum below the side wraps round to something huge when the side is taken off it, so the smaller one is right.
    np.minimum(shift, shift - side, out=shift)
    return shift
