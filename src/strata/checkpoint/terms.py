"""Whose turn it is to save, where a local disk stands before another storage.

far      the lineage in the storage behind: the authority. A run begins its term there.
near     a copy on the local disk, which commits on that disk are checked against: so saving goes on while the storage
         behind does not answer. Beside it, in `far.json`, which storage it is a copy of.

While the storage behind cannot be reached, a run may begin a term on the local disk alone, if it is known what was
there last. It is settled before anything is uploaded. The law: the storage behind takes such terms on only if no other
run has begun there meanwhile; if one has, they are left behind, and their writer is superseded.
"""

import time
from typing import NamedTuple

import msgspec

from strata.checkpoint.lineage import (
    LINEAGE,
    TRIES,
    Lineage,
    Term,
    begin_term,
    read_lineage,
    replace_lineage,
    superseded_by,
    versioned_lineage,
)
from strata.checkpoint.manifest import UNREADABLE
from strata.checkpoint.store import Store
from strata.errors import (
    CheckpointDamaged,
    Conflict,
    ObjectChanged,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from strata.logs import get_logger

logger = get_logger("strata.checkpoint")

FAR = "far.json"


class Tie(msgspec.Struct, frozen=True):
    """Which storage a local disk stands before, and the last term that was seen there."""

    far: str
    settled: Term | None = None


class Known(NamedTuple):
    """What is known of the terms without asking, and the last that the storage behind was seen to know, too."""

    lineage: Lineage
    settled: Term | None


def unsettled(near: Known, far: Lineage) -> list[Term] | None:
    """The terms by which the local disk is ahead; none where the storage behind has gone on without it. Pure.

    None: the storage behind has lost what was seen there.
    """
    terms, seen = near.lineage.terms, near.settled
    there = {(each.term, each.writer) for each in far.terms}
    shared = [each for each in (seen, *terms) if each is not None and (each.term, each.writer) in there]
    if shared:
        last = max(shared, key=lambda each: each.term)
        return [each for each in terms if each.term > last.term] if is_same(last, far.newest) else []
    if seen is None:
        return [] if far.terms else list(terms)
    return [] if far.newest is not None and far.newest.term >= seen.term else None


def is_same(one: Term | None, other: Term | None) -> bool:
    return one is not None and other is not None and (one.term, one.writer) == (other.term, other.writer)


class Terms:
    """The terms of a job on both sides, and the one that this process has begun."""

    def __init__(self, near: Store, far: Store) -> None:
        self.near, self.far = near, far
        self.term: Term | None = None
        self.is_settled = False
        """Whether the storage behind knows this process's term."""
        self.is_copied = False
        """Whether the local disk does."""
        self._last: Known | None = None

    # -- looking -----------------------------------------------------------------------------------------------------

    async def look(self) -> Lineage:
        """The line of both sides. Changes nothing."""
        far = await read_lineage(self.far)
        return self._seen(far, await self._ahead(far))

    async def remembered(self) -> Lineage | None:
        """As it was last known; None if it never was."""
        known = await self._known()
        return None if known is None else known.lineage

    def _seen(self, far: Lineage, ahead: list[Term]) -> Lineage:
        lineage = Lineage(terms=[*far.terms, *ahead])
        if self.term is None:
            self._last = Known(lineage, far.newest)
        return lineage

    async def _ahead(self, far: Lineage) -> list[Term]:
        known = await (self._on_disk() if self.term is None else self._known())
        ahead = [] if known is None else unsettled(known, far)
        if ahead is None:
            raise Conflict(
                f"{_place(self.far)} knows nothing of the runs that {_place(self.near)} saw there: its {LINEAGE} is "
                f"gone, or was put back to an older one. If it was emptied on purpose, remove {_place(self.near)} too; "
                "if not, bring it back, or copy the local folder there"
            )
        return ahead

    async def _known(self) -> Known | None:
        return self._last or await self._on_disk()

    async def _on_disk(self) -> Known | None:
        """A disk that cannot be read knows nothing. Conflict for one that stands before another storage."""
        try:
            tie, lineage = await self._tie(), await read_lineage(self.near)
        except (StorageError, CheckpointDamaged) as error:
            logger.warning("the local tier's lineage cannot be read: %s", error)
            return None
        if tie is None and lineage.terms:
            raise Conflict(
                f"{_place(self.near)} holds checkpoints that were saved with no storage behind: give the local tier "
                f"an empty folder, or copy them to {self.far.storage.url} and remove them"
            )
        if tie is None:
            return None
        if tie.far != self.far.storage.url:
            raise Conflict(
                f"{_place(self.near)} is the local tier of {tie.far}, not of {self.far.storage.url}: give each a "
                "folder or a job_id of its own, or remove what is there"
            )
        return Known(lineage, tie.settled)

    async def _tie(self) -> Tie | None:
        key = self.near.key(FAR)
        try:
            return msgspec.json.decode(await self.near.storage.read(key), type=Tie)
        except ObjectNotFound:
            return None
        except UNREADABLE as error:
            raise CheckpointDamaged(f"{self.near.storage.url}/{key} is damaged: {error}") from error

    # -- settling ----------------------------------------------------------------------------------------------------

    async def settle(self) -> Lineage:
        """Tell the storage behind of terms that began while it could not be reached; gives its lineage.

        Superseded if this process has a term, and another has begun one since.
        """
        for _ in range(TRIES):
            far, version = await versioned_lineage(self.far)
            ahead = await self._ahead(far)
            if ahead:
                far = Lineage(terms=[*far.terms, *ahead])
                try:
                    await replace_lineage(self.far, far.terms, version)
                except ObjectChanged:
                    continue
            return self._settled(self._seen(far, []))
        raise superseded_by(self.far, None)

    def _settled(self, far: Lineage) -> Lineage:
        if self.term is not None:
            if not is_same(far.newest, self.term):
                raise superseded_by(self.far, far.newest)
            if not self.is_settled:
                logger.info("%s can be reached again, and knows of this run now", _place(self.far))
                self.is_settled, self.is_copied, self._last = True, False, Known(far, self.term)
        return far

    # -- beginning ---------------------------------------------------------------------------------------------------

    async def begin(self, base: int, writer: str, oldest: int) -> Term:
        """A term of this process's own: in the storage behind, or if that does not answer, on the local disk."""
        try:
            await self.settle()
            term = await begin_term(self.far, base, writer, oldest, after=self.term if self.is_settled else None)
            lineage = await read_lineage(self.far)
        except StorageUnavailable as error:
            return await self._begin_alone(base, writer, error)
        self._begun(term, Known(lineage, term), is_settled=True)
        return term

    async def _begin_alone(self, base: int, writer: str, error: StorageUnavailable) -> Term:
        known = await self._known()
        if known is None:
            raise StorageUnavailable(
                f"no save can begin: {_place(self.far)} cannot be reached, and nothing on the local disk says what is "
                f"in it. {error}",
                storage=self.far.storage.url,
            ) from error
        newest = known.lineage.newest
        term = Term(newest.term + 1 if newest else 1, base, writer, time.time())
        logger.warning("saving on the local disk alone for now: %s cannot be reached. %s", _place(self.far), error)
        self._begun(term, Known(Lineage(terms=[*known.lineage.terms, term]), known.settled), is_settled=False)
        return term

    def _begun(self, term: Term, known: Known, *, is_settled: bool) -> None:
        self.term, self._last, self.is_settled, self.is_copied = term, known, is_settled, False

    async def copy(self) -> None:
        """To the local disk, which can then commit. Superseded if another process on this machine has begun since."""
        assert self.term is not None
        assert self._last is not None
        tie = Tie(self.far.storage.url, self._last.settled)
        await self.near.storage.write(self.near.key(FAR), msgspec.json.encode(tie))
        for _ in range(TRIES):
            newest, version = await self._newest_on_disk()
            if self._is_later(newest):
                await self._check_newest(newest)
            try:
                await replace_lineage(self.near, self._last.lineage.terms, version)
            except ObjectChanged:
                continue
            self.is_copied = True
            return
        raise superseded_by(self.near, None)

    async def check_near(self) -> None:
        """Superseded if another process on this machine has begun since. A disk that knows nothing says nothing."""
        newest, _ = await self._newest_on_disk()
        if self._is_later(newest):
            raise superseded_by(self.near, newest)

    def _is_later(self, newest: Term | None) -> bool:
        if newest is None or self.term is None:
            return False
        return newest.term >= self.term.term and not is_same(newest, self.term)

    async def _newest_on_disk(self) -> tuple[Term | None, str | None]:
        try:
            lineage, version = await versioned_lineage(self.near)
        except CheckpointDamaged:  # to be replaced by what is known
            return None, await self.near.storage.version(self.near.key(LINEAGE))
        return lineage.newest, version

    async def _check_newest(self, on_disk: Term | None) -> None:
        """It may be one that was left behind: the storage behind knows, if it was told of this one."""
        newest = (await read_lineage(self.far)).newest if self.is_settled else on_disk
        if not is_same(newest, self.term):
            raise superseded_by(self.far, newest)


def _place(store: Store) -> str:
    return f"{store.storage.url}/{store.root}"
