"""What ranks have in common is compared once: at the first save of a run, and what is new at the save that brings it.

Whether that is done is known when a save was well: until then each save tries again, since any may fail. Between saves
that bring nothing new nothing is looked at but names.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strata.checkpoint.agreement import Done
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.manifest import Part
from strata.checkpoint.replicas import copies_of, differing, lost_values, stored_on_devices
from strata.checkpoint.tree import Leaf
from strata.checkpoint.whole import Whole
from strata.errors import RankFailed
from strata.logs import get_logger
from strata.texts import some_of

logger = get_logger("strata.checkpoint")

REMEMBERED = 10_000
"""So many plain values are known to have been told of: what differs beyond is not told again."""


class Copies(NamedTuple):
    """What a save brings that was not compared yet: the names of its arrays, and digests of some; see `replicas`."""

    names: list[str]
    digests: dict[str, list[str]]
    on_devices: dict[str, list[str]]


class Comparing:
    """As one rank does it. Rank 0 compares what others tell it with what it stores itself."""

    def __init__(self, *, leads: bool) -> None:
        self._leads = leads
        self._compared: set[str] = set()
        self._has_compared = False
        self._lost: set[tuple[int, str]] = set()
        """Of which rank which plain values, as was told."""
        self._taken: dict[str, Copies] = {}
        """By save: those of this one, since any other had other values."""

    def take(self, save: str, leaves: Sequence[Leaf]) -> None:
        """In the caller's thread, while the state is as it is saved."""
        new = [leaf for leaf in leaves if leaf.name not in self._compared]
        if new or not self._has_compared:
            on_devices = stored_on_devices(new) if self._leads else {}
            self._taken[save] = Copies([leaf.name for leaf in new], copies_of(new), on_devices)

    def has(self, save: str) -> bool:
        return save in self._taken

    def given(self, save: str) -> Copies | None:
        """What was taken; nobody asks for it again."""
        return self._taken.pop(save, None)

    def is_done(self, copies: Copies | None) -> None:
        if copies is not None:
            self._compared.update(copies.names)
            self._has_compared = True

    def compare(self, handle: SaveHandle, parts: Sequence[Part], whole: Whole, told: Mapping[int, Done]) -> None:
        """What other ranks say of their copies with what rank 0 stores, and with its own copies. RankFailed for what
        must not differ. What may is told once: it does so at each save."""
        own, copies = parts[0], self.given(handle.name)
        shared = copies.digests if copies is not None else {}
        for rank, done in told.items():
            _check_same(rank, done, shared)
            on_devices = copies.on_devices if copies is not None else {}
            names = [name for name in differing(done.copies, own, on_devices) if name not in self._compared]
            if names:
                _tell(handle, f"rank {rank} has other values than rank 0 for {some_of(names)}: rank 0's are saved")
        if copies is not None:
            self._tell_values(handle, parts, whole)
        self.is_done(copies)

    def _tell_values(self, handle: SaveHandle, parts: Sequence[Part], whole: Whole) -> None:
        for (rank, holder), lost in sorted(lost_values(parts, whole).items()):
            names = [name for name in lost if (rank, name) not in self._lost]
            if names and len(self._lost) < REMEMBERED:
                what = f"rank {rank} has other values than rank {holder} for {some_of(names)}"
                _tell(handle, f"{what}: rank {holder}'s are saved")
                self._lost.update((rank, name) for name in names[: REMEMBERED - len(self._lost)])


def _check_same(rank: int, done: Done, shared: Mapping[str, list[str]]) -> None:
    names = [name for name, digests in shared.items() if done.copies.get(name, digests) != digests]
    if names:
        raise RankFailed(
            f"rank {rank} on {done.node} has other values than rank 0 for {some_of(names)}, which is "
            "marked Replicated, as parameters of DDP are: it is not the same on all ranks"
        )


def _tell(handle: SaveHandle, what: str) -> None:
    words = f"{what}. If each rank needs its own, mark them PerRank"
    logger.warning("step %d: %s", handle.step, words)
    handle.report.notes.append(words)
