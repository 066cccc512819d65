"""What ranks of one job must tell each other to save together, whatever carries it.

    rank 0       settle ▸ go_on_from ▸ tell_names ▸ tell ················ parts ▸ decide ▸ (the commit) ▸ over ▸ forget
    the others                         names ◂      word ▸ done, or failed ··············· outcome ◂

`words` carries it through the storage, `council` through the coordinator. A save is known by a name that is the same on
all ranks.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from strata.checkpoint.datapositions import Positions
from strata.checkpoint.lineage import Term
from strata.checkpoint.manifest import Metadata, PartRef
from strata.checkpoint.store import Folder
from strata.errors import RankFailed, SaveReplaced, SaveSkipped, StrataError

REPLACED = "a later save took its place"


class Word(msgspec.Struct, frozen=True):
    """What the first rank says of a save."""

    step: int
    skipped: str = ""
    """Why it is not made."""
    failed: str = ""
    """Why it is not made any more."""
    replaced: bool = False
    """Whether that is since another has taken its place."""
    abandoned: bool = False
    """Whether it is since those who save together are others from now on, who may save this step anew."""
    folder: str = ""
    attempt: str = ""
    term: Term | None = None


class Done(msgspec.Struct, frozen=True):
    """What a rank says of its part, and on which machine it is."""

    node: str
    part: PartRef | None = None
    failed: str = ""
    copies: dict[str, list[str]] = {}
    """At the first save: the digests of what rank 0 stores for it; see `replicas`."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a save. `certain`: what failed was not committed, and never will be."""

    failed: str = ""
    certain: bool = True
    replaced: bool = False


def check_made(word: Word) -> None:
    """Raises what became of a save, if rank 0 does not make it."""
    if word.skipped:
        raise SaveSkipped(word.skipped)
    if word.failed:
        raise given_up(word.step, word)


def given_up(step: int, told: Word | Outcome) -> StrataError:
    """To be raised: what became of it on rank 0 becomes of it here."""
    if told.replaced:
        return SaveReplaced(f"the save of step {step} was given up for a later one")
    return RankFailed(f"rank 0 gave up the save of step {step}: {told.failed}")


class Agreement(Protocol):
    """As one rank of several has it. Where others are not heard in time, RankFailed says who."""

    rank: int
    size: int
    run: str
    """The name of this start of all ranks; empty if it has none."""

    async def settle(self) -> None:
        """Rank 0, before it looks where to go on from: what was decided and has no manifest yet gets one."""

    async def go_on_from(self, base: tuple[Folder, Metadata] | None) -> None:
        """Rank 0, before it begins a term: the job goes on from this checkpoint, or from the start."""

    async def tell_names(self, names: list[str], term: Term | None) -> None:
        """Rank 0: of its arrays, which others need not write."""

    async def tell(self, save: str, word: Word, epoch: int = 0) -> None:
        """Rank 0: where a save goes, or why nowhere. SaveSkipped if it is not to be made."""

    async def parts(self, save: str, attempt: str, *, compare: bool) -> dict[int, Done]:
        """Rank 0: what all others say of this attempt. RankFailed, with the rank's own words, if one of them did not do
        its part. `compare`: what they say of copies is wanted."""

    async def absent(self, save: str) -> list[int]:
        """Rank 0: the others of which it has no part yet."""

    async def decide(self, save: str, part: PartRef, metrics: Mapping[str, float], data: Positions) -> bool:
        """Rank 0: all parts are there, its own too, and they are all of the state. Now it is committed: whether by rank
        0 alone, and by nobody else. `data`: where the job is in each dataset."""

    async def over(self, save: str, outcome: Outcome) -> None:
        """Rank 0: what became of it."""

    async def forget(self, save: str) -> None:
        """Rank 0: nobody waits for what was said of this one any more."""

    async def forget_others(self, term: Term) -> None:
        """Rank 0: what runs that are over have said."""

    async def removed(self, gone: Sequence[tuple[Folder, Metadata]]) -> None:
        """Rank 0: these checkpoints are not kept any more."""

    async def names(self, save: str) -> list[str]:
        """Of rank 0's arrays, at the time of this save; or what became of it, if it is not made: see `check_made`."""

    async def word(self, save: str) -> Word:
        """What rank 0 says of it."""

    async def done(self, save: str, part: PartRef, copies: dict[str, list[str]]) -> None:
        """This rank's part is durable."""

    async def failed(self, save: str, why: str) -> None:
        """This rank has no part in it."""

    async def outcome(self, save: str, is_committed: Callable[[], Awaitable[bool]]) -> Outcome:
        """What became of it. The checkpoint itself says so, too."""
