"""Shards and places as strips of a fixed width: each cell is a stretch of the line, the darker the more of it is
meant."""

import numpy as np
from numpy.typing import NDArray

SHADES = "·░▒▓█"
"""Nothing, up to a third, up to two thirds, less than all, all."""


def cell_edges(length: int, width: int) -> NDArray[np.int64]:
    """Where each cell begins, and where the last ends. A line that is shorter than wide has a cell for each place."""
    cells = max(1, min(length, width))
    return np.arange(cells + 1, dtype=np.int64) * length // cells if length < 2**40 else _wide_edges(length, cells)


def _wide_edges(length: int, cells: int) -> NDArray[np.int64]:
    return np.array([cell * length // cells for cell in range(cells + 1)], np.int64)


def strip(counts: NDArray[np.int64], edges: NDArray[np.int64]) -> str:
    """A shade for each cell, of which so many places count."""
    sizes = np.diff(edges)
    levels = np.where(counts == sizes, 4, np.minimum(3, -(-3 * counts // sizes)))
    return "".join(SHADES[level] for level in levels.tolist())


def strip_of(places: NDArray[np.int64], length: int, width: int) -> str:
    """A line of this length, on which these places are meant."""
    edges = cell_edges(length, width)
    counts, _ = np.histogram(places, edges)  # the last cell takes its end in, where no place is
    return strip(counts.astype(np.int64), edges)
