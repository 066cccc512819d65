"""What a run of batches takes of each block: rows that are there, values that are still to be read from their files,
and, where damage is skipped, what is missing."""

import itertools
from collections import Counter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.data.columns import Lying, Rows
from strata.data.files import Folder, Reading
from strata.data.held import Decoded
from strata.data.index import told
from strata.data.skipping import UNREADABLE, Skips

Places: TypeAlias = NDArray[np.intp]
Missing: TypeAlias = dict[int, Counter[int]]
"""How many samples of which blocks are left out, by the number of the batch in its run."""


class Stretch(NamedTuple):
    """Rows of a block. They go to the places of the run from number `start` to `end`."""

    block: int
    decoded: Decoded
    rows: Rows
    start: int
    end: int


def with_values(stretches: list[Stretch], skips: Skips | None) -> list[Stretch]:
    """With the values that lay in files; what cannot be read is an error, or left out. Each file is opened once, since
    stretches come in the order of blocks."""
    found: list[Stretch] = []
    for lying, group in itertools.groupby(stretches, _file_of_lying):
        of_file = [each for each in group if skips is None or each.block not in skips]
        try:
            found += of_file if lying is None else _read(of_file)
        except UNREADABLE as error:
            if skips is None:
                raise
            for each in of_file:
                skips.note(each.block, _lying(each).file, _lying(each).samples, error)
    return found


def _read(stretches: list[Stretch]) -> list[Stretch]:
    if not stretches:
        return []
    file = _lying(stretches[0]).file
    try:
        with file.reading() as reading:
            return [_read_stretch(reading, each) for each in stretches]
    except Exception:  # what it is, and where, takes time to say: only here
        with told(file, _lying(stretches[0]).samples[0], _lying(stretches[-1]).samples[1]):
            raise


def _read_stretch(reading: Reading, stretch: Stretch) -> Stretch:
    block, decoded, rows, start, end = stretch
    columns: Decoded = {
        name: column.read(reading, rows) if isinstance(column, Lying) else column for name, column in decoded.items()
    }
    return Stretch(block, columns, rows, start, end)


def _file_of_lying(stretch: Stretch) -> tuple[str, Folder] | None:
    """Not the file itself: many are compared."""
    for column in stretch.decoded.values():
        if isinstance(column, Lying):
            return column.file.name, column.file.folder
    return None


def _lying(stretch: Stretch) -> Lying:
    return next(column for column in stretch.decoded.values() if isinstance(column, Lying))


class Remains(NamedTuple):
    """A run without the samples that are left out: its edges, stretches and their places, and what is missing."""

    edges: list[int]
    stretches: list[Stretch]
    places: Places
    missing: Missing


def remains(edges: list[int], stretches: list[Stretch], kept: list[Stretch], places: Places) -> Remains:
    """`kept` are those of the stretches that could be read."""
    blocks = {each.block for each in kept}
    lost = [each for each in stretches if each.block not in blocks]
    if not lost:
        return Remains(edges, kept, places, {})
    is_kept = np.ones(len(places), bool)
    missing: Missing = {}
    for each in lost:
        gone = places[each.start : each.end]
        is_kept[gone] = False
        for batch in (np.searchsorted(edges, gone, side="right") - 1).tolist():
            missing.setdefault(batch, Counter())[each.block] += 1
    before = np.concatenate([[0], np.cumsum(is_kept)])
    moved = [before[places[each.start : each.end]] for each in kept]
    ends = [*itertools.accumulate(len(each.rows) for each in kept)]
    return Remains(
        before[edges].tolist(),
        [each._replace(start=end - len(each.rows), end=end) for each, end in zip(kept, ends, strict=True)],
        np.concatenate(moved) if moved else np.empty(0, np.intp),
        missing,
    )
