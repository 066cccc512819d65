"""Which checkpoints lead to where a job is now. One object in the storage, changed by compare-and-swap.

Each run of a writer is a term, and goes on from a base: the step it had loaded, or -1. A checkpoint is on the line if
no later term went back behind it. So whoever loads step 900 and trains on leaves what came after 900 behind: it is
never the latest again, and never in the way, even if the process that wrote it still runs.

The law: the newest term alone may commit. One that finds a newer than its own stops.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from strata.checkpoint.manifest import MOST_TERMS, UNREADABLE, Metadata, check_format, check_own_digest, digest_of
from strata.checkpoint.store import Store
from strata.core.ids import advice_on_default
from strata.errors import CheckpointDamaged, ObjectChanged, ObjectNotFound, Superseded

LINEAGE = "lineage.json"
FORMAT = 1
TRIES = 20
_ATTEMPT = re.compile(r"\d{1,9}-[0-9a-f]{1,64}")

T = TypeVar("T")


class Term(msgspec.Struct, frozen=True):
    """A run of a writer: it went on from the step `base`."""

    term: int
    base: int
    writer: str
    unix_seconds: float
    run: str = ""
    """The name of the start of all ranks that it belongs to, where there are several."""


NOBODY = Term(0, -1, "nobody", 0.0)
"""Instead of the newest, where nobody has begun one."""


class Lineage(msgspec.Struct, frozen=True):
    """The terms of a job that still matter, oldest first."""

    format: int = FORMAT
    terms: list[Term] = []
    digest: str = ""

    @property
    def newest(self) -> Term | None:
        return self.terms[-1] if self.terms else None

    def holds(self, step: int, term: int) -> bool:
        """Whether a checkpoint of this step, saved in this term, is on the line."""
        return all(step <= later.base for later in self.terms if later.term > term)

    def knows(self, term: int, attempt: str) -> bool:
        """Whether the very run that saved this is in here: of two that did not see each other, both may be of one
        number."""
        return any(each.term == term and is_of(each, attempt) for each in self.terms)

    def line(self, checkpoints: Iterable[tuple[T, Metadata]]) -> dict[int, T]:
        """Those on the line, by step; of a step that was saved twice, the later one."""
        found: dict[int, tuple[int, T]] = {}
        for what, metadata in checkpoints:
            if self.holds(metadata.step, metadata.term):
                known = found.get(metadata.step)
                if known is None or known[0] < metadata.term:
                    found[metadata.step] = (metadata.term, what)
        return {step: found[step][1] for step in sorted(found)}


def rebuilt(checkpoints: Iterable[Metadata]) -> Lineage:
    """The lineage from the checkpoints themselves, where its file is gone: each term went on from before its first one.

    So the latest is of the newest term that saved anything. What went back further is not known any more.
    """
    firsts: dict[int, int] = {}
    for metadata in checkpoints:
        firsts[metadata.term] = min(metadata.step, firsts.get(metadata.term, metadata.step))
    # A copy that was made where nobody had saved is of no term.
    return Lineage(terms=[Term(term, first - 1, "unknown", 0.0) for term, first in sorted(firsts.items()) if term])


def writer_name() -> str:
    """This process, for people; no two are the same."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def attempt_name(term: Term) -> str:
    """For a save in this term. It says whose it is, and no two are the same."""
    return f"{stem_of(term)}{secrets.token_hex(2)}"


def is_attempt_name(name: str) -> bool:
    """Whether it is one, and no path to anywhere."""
    return _ATTEMPT.fullmatch(name) is not None


def is_of(term: Term, attempt: str) -> bool:
    return attempt.startswith(stem_of(term))


def stem_of(term: Term) -> str:
    """How the names of all its attempts begin."""
    return f"{term.term}-{term.writer.rpartition(':')[2]}"


async def read_lineage(store: Store) -> Lineage:
    return (await versioned_lineage(store))[0]


async def begin_term(
    store: Store,
    base: int,
    writer: str,
    oldest: int = 0,
    checkpoints: Sequence[Metadata] = (),
    *,
    after: Term | None = None,
    run: str = "",
    agree: Callable[[], Awaitable[None]] | None = None,
) -> Term:
    """A term of this writer's own, beyond all others. Those before `oldest` matter to no checkpoint any more; that one
    may yet have a save which is decided, and must be known as this storage's to be given up. What the checkpoints say
    of themselves counts where nothing else is known. Superseded if it is to come right `after` another, its own or the
    newest when it looked where to go on from, and somebody else has begun one since. Who must `agree` is asked once it
    is known which term is the newest, and again if another has begun meanwhile: so nobody who was asked long ago takes
    over."""
    for _ in range(TRIES):
        known, version = await versioned_lineage(store)
        if agree is not None:
            await agree()
        if version is None:
            known = rebuilt(checkpoints)
        last = known.newest
        is_own = last is not None and last.writer == writer  # begun before, and no answer came
        if after is not None and last is not None and not is_own and not _is_of_one(last, after):
            raise superseded_by(store, last)
        term = Term(1 if last is None else last.term + 1, base, writer, time.time(), run)
        kept = [each for each in known.terms if each.term >= oldest]
        try:
            await replace_lineage(store, [*kept, term], version)
        except ObjectChanged:
            continue
        return term
    raise Superseded(f"other processes keep taking over the checkpoints in {store.storage.url}/{store.root}")


async def check_term(store: Store, term: Term) -> None:
    """Superseded if another writer has taken over since."""
    newest = (await read_lineage(store)).newest
    if newest is None or not _is_of_one(newest, term):
        raise superseded_by(store, newest)


def _is_of_one(term: Term, other: Term) -> bool:
    """Two that did not see each other may have one number."""
    return (term.term, term.writer) == (other.term, other.writer)


def superseded_by(store: Store, newest: Term | None) -> Superseded:
    who = "nobody knows who" if newest is None else f"{newest.writer} since {_when(newest.unix_seconds)}"
    return Superseded(
        f"another process writes the checkpoints in {store.storage.url}/{store.root} now ({who}): "
        "this one must not save any more. If both are ranks of one run, give rank= and world_size= on all of them"
        f"{advice_on_default(store.job)}"
    )


async def replace_lineage(store: Store, terms: Sequence[Term], version: str | None) -> None:
    """ObjectChanged if it is another version by now."""
    await store.storage.compare_and_swap(store.key(LINEAGE), _encode([*terms]), version)


async def versioned_lineage(store: Store) -> tuple[Lineage, str | None]:
    """And its version, to be given to `replace_lineage`."""
    key = store.key(LINEAGE)
    try:
        data, version = await store.storage.read_versioned(key)
    except ObjectNotFound:
        return Lineage(), None
    try:
        return _decode(data, f"{store.storage.url}/{key}"), version
    except CheckpointDamaged as error:
        raise CheckpointDamaged(
            f"{error}. Remove it, and it is made anew from what the checkpoints say of themselves"
        ) from error


def _decode(data: bytes, where: str) -> Lineage:
    check_own_digest(data, where)
    check_format(data, where, FORMAT)
    try:
        found = msgspec.json.decode(data, type=Lineage)
    except UNREADABLE as error:
        raise CheckpointDamaged(f"{where} is damaged: {error}") from error
    numbers = [0, *(each.term for each in found.terms), MOST_TERMS]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise CheckpointDamaged(f"{where} is damaged: its terms do not follow each other")
    return found


def _encode(terms: list[Term]) -> bytes:
    bare = Lineage(terms=terms)
    digest = digest_of(msgspec.json.encode(bare) + b"\n")
    return msgspec.json.encode(msgspec.structs.replace(bare, digest=digest)) + b"\n"


def _when(unix_seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_seconds))
    except (OverflowError, ValueError, OSError):
        return "a time that never was"
