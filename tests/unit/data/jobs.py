"""Jobs of several ranks that live through a history: steps, commits, crashes, other world sizes.

With respect to what was committed nothing else may be seen than an epoch after the other, each sample of each once. A
rank that crashes has taken what it has taken: it counts for nothing, since nothing of it was committed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from tests.unit.data.oracles import Content, Given, Oracle, Place

WORLDS = (1, 2, 3, 4, 8)
_ENDED = object()


class Event(NamedTuple):
    """take       so many steps
    commit        the state as a checkpoint holds it
    crash         the first rank is `ahead` of the others; all begin again at the last commit, `number` of them
    resize        commit, and go on with so many ranks
    back          the ranks that live go back to the last commit; with `ahead`, the iterators are asked for more
    epoch         set_epoch; the same
    drop, leave   the iterators are dropped in the middle, and so closed; or they are forgotten somewhere
    stale         who finds a forgotten one gets nothing from it: there is another, or the place is another
    """

    what: str
    number: int = 0
    ahead: int = 0


@dataclass
class Rank:
    """A loader, a sampler or a mix, and how it is iterated."""

    cursor: Any
    begin: Callable[[], Iterator[Content]]
    close: Callable[[], None]


def histories(*without: str, worlds: Sequence[int] = WORLDS, most: int = 8) -> st.SearchStrategy[list[Event]]:
    """Of these kinds of events none happens. There are steps before each of the others: else little could go wrong."""
    world, none, asked = st.sampled_from(worlds), st.just(0), st.integers(0, 1)
    numbers = {
        "commit": (none, none),
        "crash": (world, st.integers(0, 3)),
        "resize": (world, none),
        "back": (none, asked),
        "epoch": (st.integers(0, 2), asked),
        "drop": (none, none),
        "leave": (none, none),
        "stale": (none, none),
    }
    steps = st.builds(Event, st.just("take"), st.integers(0, 6), none)
    others = [st.builds(Event, st.just(kind), *each) for kind, each in numbers.items() if kind not in without]
    pairs = st.lists(st.tuples(steps, st.one_of(others)), min_size=2, max_size=most)
    return pairs.map(lambda found: [event for pair in found for event in pair])


class Job:
    def __init__(self, make: Callable[[int, int], Rank], oracle: Oracle, world: int) -> None:
        """`make` makes a rank of so many."""
        self._make, self._oracle = make, oracle
        self._place: Place = (0, 0)
        self._given: Given = []
        self._iterators: list[Iterator[Content]] | None = None
        self._left: list[Iterator[Content]] = []
        """Forgotten, and nobody iterates since."""
        self._stale: list[Iterator[Content]] = []
        self._ranks = [make(rank, world) for rank in range(world)]
        self._commit()

    def live(self, history: Sequence[Event], last_steps: int) -> None:
        """Then so many steps more at most, to the end of the epoch if it has one; and all that was given is checked."""
        try:
            for event in history:
                self._happen(event)
            epoch, most = self._place[0], len(self._given) + last_steps
            while self._place[0] == epoch and len(self._given) < most:
                self._step()
            self._commit()
            self._oracle.check(self._given)
        finally:
            self._stop()

    def _happen(self, event: Event) -> None:
        match event.what:
            case "take":
                for _ in range(event.number):
                    self._step()
            case "commit":
                self._commit()
            case "crash":
                for _ in range(event.ahead):
                    next(self._begun()[0], None)
                self._begin_again(event.number)
            case "resize":
                self._commit()
                self._begin_again(event.number)
            case "back":
                self._go_back()
                self._moved(event.ahead)
            case "epoch":
                for rank in self._ranks:
                    rank.cursor.set_epoch(event.number)
                self._place = event.number, 0
                self._moved(event.ahead)
            case "drop":
                self._iterators = None
            case "leave":
                self._leave()
            case "stale":
                self._ask_stale()

    def _begun(self) -> list[Iterator[Content]]:
        if self._iterators is None:
            self._iterators = [rank.begin() for rank in self._ranks]
        return self._iterators

    def _step(self) -> None:
        """The same on all ranks: a batch, or the end of the epoch."""
        shares: list[Any] = [next(each, _ENDED) for each in self._begun()]
        self._outdate()
        expected = self._oracle.batch(self._place)
        if expected is None:
            assert all(share is _ENDED for share in shares), shares
            self._iterators = None
        else:
            assert all(share is not _ENDED for share in shares), shares
            whole = _together(shares)
            assert _bits(whole) == _bits(expected)
            self._given.append((self._place, whole))
        self._place = self._oracle.after(self._place)

    def _commit(self) -> None:
        states = [json.dumps(rank.cursor.state_dict()) for rank in self._ranks]
        assert {*states} == {states[0]}
        assert self._oracle.is_at(json.loads(states[0]), self._place)
        self._committed = states[0], self._place, [*self._given]

    def _begin_again(self, world: int) -> None:
        self._stop()
        self._ranks = [self._make(rank, world) for rank in range(world)]
        self._go_back()

    def _go_back(self) -> None:
        state, self._place, given = self._committed
        self._given = [*given]
        for rank in self._ranks:
            rank.cursor.load_state_dict(json.loads(state))

    def _moved(self, is_asked: int) -> None:
        self._leave()
        self._outdate()
        if is_asked:
            self._ask_stale()

    def _ask_stale(self) -> None:
        assert all(next(each, _ENDED) is _ENDED for each in self._stale)

    def _outdate(self) -> None:
        self._stale += self._left
        self._left = []

    def _leave(self) -> None:
        self._left += self._iterators or []
        self._iterators = None

    def _stop(self) -> None:
        self._iterators, self._left, self._stale = None, [], []
        for rank in self._ranks:
            rank.close()


def _together(shares: list[Content]) -> Content:
    assert all([*share] == [*shares[0]] for share in shares), "all ranks have the same columns"
    return {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}


def _bits(content: Content) -> dict[str, Any]:
    return {
        name: (values.dtype, values.shape, values.tolist() if values.dtype.hasobject else values.tobytes())
        for name, values in content.items()
    }
