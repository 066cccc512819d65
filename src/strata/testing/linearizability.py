"""Whether what concurrent clients saw can be explained by one thing happening after the other.

Each call of a recorded history took effect, if at all, at one instant between its beginning and its end. `check` looks
for an order of such instants in which a plain sequential model gives every answer that was given, by the algorithm of
Wing and Gong with Lowe's memory of what was tried. A call without an answer may have happened at any time after it
began, or not at all.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
Question = TypeVar("Question")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Operation(Generic[Question, Response]):
    """One call: who made it, what was asked and answered, and when it began and ended on one clock.

    `ended` is None where no answer came; `answer` means nothing then.
    """

    client: int
    question: Question
    answer: Response | None
    began: float
    ended: float | None


Step = Callable[[State, Question, Response | None, bool], State | None]
"""The model: (state, question, answer, is the answer known) -> the state after it, or None if this answer could not be
given in this state."""


@dataclass(slots=True)
class _Entry(Generic[Question, Response]):
    """A place in the order of beginnings and ends; the two of a call know each other."""

    number: int
    operation: Operation[Question, Response] | None
    end: "_Entry[Question, Response] | None" = None
    before: "_Entry[Question, Response] | None" = None
    after: "_Entry[Question, Response] | None" = None

    def unlink(self) -> None:
        assert self.before is not None
        self.before.after = self.after
        if self.after is not None:
            self.after.before = self.before

    def relink(self) -> None:
        assert self.before is not None
        self.before.after = self
        if self.after is not None:
            self.after.before = self


@dataclass(frozen=True, slots=True)
class Verdict(Generic[Question, Response]):
    """`longest` is how far an explanation got at best, and `stuck` what could not follow; for people to read."""

    holds: bool
    longest: list[Operation[Question, Response]] = field(default_factory=list)
    stuck: list[Operation[Question, Response]] = field(default_factory=list)


def check(
    history: Iterable[Operation[Question, Response]], initial: State, step: Step[State, Question, Response]
) -> Verdict[Question, Response]:
    """Whether the history of one object is linearizable. Histories of several objects are checked one by one."""
    operations = list(history)
    start = _linked(operations)
    state: State = initial
    done = 0
    tried: set[tuple[int, State]] = set()
    trail: list[tuple[_Entry[Question, Response], State]] = []
    best: list[Operation[Question, Response]] = []
    entry = start.after
    needed = sum(operation.ended is not None for operation in operations)
    finished = 0
    while finished < needed:
        if entry is not None and entry.operation is not None:
            following = step(state, entry.operation.question, entry.operation.answer, entry.end is not None)
            idle = entry.end is None and following == state  # whether that happened makes no difference
            if following is not None and not idle and (done | 1 << entry.number, following) not in tried:
                tried.add((done | 1 << entry.number, following))
                trail.append((entry, state))
                state, done = following, done | 1 << entry.number
                finished += entry.end is not None
                _take_out(entry)
                if len(trail) > len(best):
                    best = [taken.operation for taken, _ in trail if taken.operation is not None]
                entry = start.after
            else:
                entry = entry.after
        else:
            # The end of a call that must have happened before it: nothing further may come first.
            if not trail:
                return Verdict(False, best, [each for each in operations if each not in best][:5])
            taken, state = trail.pop()
            done &= ~(1 << taken.number)
            finished -= taken.end is not None
            _put_back(taken)
            entry = taken.after
    return Verdict(True, best)


def _linked(operations: list[Operation[Question, Response]]) -> _Entry[Question, Response]:
    """Beginnings and ends in the order of time; at one instant, beginnings come first, since they may overlap."""
    marks: list[tuple[float, int, _Entry[Question, Response]]] = []
    for number, operation in enumerate(operations):
        begin: _Entry[Question, Response] = _Entry(number, operation)
        marks.append((operation.began, 0, begin))
        if operation.ended is not None:
            begin.end = _Entry(number, None)
            marks.append((operation.ended, 1, begin.end))
    marks.sort(key=lambda mark: mark[:2])
    start: _Entry[Question, Response] = _Entry(-1, None)
    last = start
    for _, _, entry in marks:
        last.after, entry.before = entry, last
        last = entry
    return start


def _take_out(entry: _Entry[Question, Response]) -> None:
    entry.unlink()
    if entry.end is not None:
        entry.end.unlink()


def _put_back(entry: _Entry[Question, Response]) -> None:
    if entry.end is not None:
        entry.end.relink()
    entry.relink()
