"""Where a job is in its datasets when it saves: each rank's part says it of that rank, and the checkpoint of all.

What was consumed and what was learned from it are in one commit, so that nothing is seen twice, and nothing is left
out, whichever checkpoint a job goes on from.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from strata.checkpoint.manifest import Part
from strata.core.events import Position
from strata.core.ranges import RangeSet
from strata.errors import RankFailed
from strata.v1 import coordinator_pb2 as pb

Positions: TypeAlias = Mapping[str, Position]
NOWHERE: Positions = {}


def merged(parts: Iterable[Part], step: int) -> dict[str, Position]:
    """Of all ranks. A position that says how its epoch is read is the whole job's, and all ranks have the same; of
    others each rank has its own, and they add up, as what ranks left out does."""
    found: dict[str, tuple[int, Position]] = {}
    for part in parts:
        for name, position in part.data.items():
            known = found.get(name)
            found[name] = (part.rank, position) if known is None else (known[0], _both(name, known, part, step))
    return {name: position for name, (_, position) in sorted(found.items())}


def _both(name: str, known: tuple[int, Position], part: Part, step: int) -> Position:
    (rank, one), other = known, part.data[name]
    left_out = one.left_out + other.left_out
    if (one.consumed, *_said(one)) == (other.consumed, *_said(other)):  # as in the elastic order
        return replace(one, left_out=left_out)
    if _said(one) != _said(other) or (one.reading and one.consumed != other.consumed):
        raise RankFailed(
            f"nothing is saved, since at step {step} rank {rank} is at {_told(one)} of dataset {name!r} and rank "
            f"{part.rank} at {_told(other)}: all ranks must save between the same two batches"
        )
    whole = RangeSet.from_flat(one.consumed).union(RangeSet.from_flat(other.consumed))
    return replace(one, consumed=whole.to_flat(), left_out=left_out)


def _said(position: Position) -> tuple[int, int, str]:
    return position.version, position.epoch, position.reading


def _told(position: Position) -> str:
    count = RangeSet.from_flat(position.consumed).count
    return f"sample {count:,} of epoch {position.epoch} (version {position.version})"


def messages(positions: Positions) -> dict[str, pb.DataPosition]:
    """For the coordinator. Version 0 is of data that is not registered with it: that stays in the checkpoint alone."""
    return {
        name: pb.DataPosition(
            version=each.version,
            epoch=each.epoch,
            consumed=pb.Ranges(edges=each.consumed),
            reading=each.reading,
            left_out_samples=each.left_out,
        )
        for name, each in positions.items()
        if each.version
    }
