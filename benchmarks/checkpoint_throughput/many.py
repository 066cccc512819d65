"""Very many small tensors, beside one large one of the same bytes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks import Table
from benchmarks.checkpoint_throughput.places import Place
from benchmarks.checkpoint_throughput.saves import Saves, settling
from benchmarks.checkpoint_throughput.scale import OBJECT_STATE_BYTES, STATE_BYTES
from benchmarks.checkpoint_throughput.states import State, bytes_of, check_same, many, room_for, whole
from benchmarks.storage.turns import Turns, take_turns, taken, times
from strata.checkpoint import CheckpointReader

ROUNDS = 5
MOST_OF_ONE = 2.0


def tables(place: Place, rounds: int = ROUNDS) -> Iterator[Table]:
    small = many(STATE_BYTES if place.folder is not None else OBJECT_STATE_BYTES)
    states = {f"{len(small):,} tensors": small, "one tensor": whole(bytes_of(small))}
    title = f"{bytes_of(small) >> 20:,} MiB in {len(small):,} tensors and in one, {place.name}"
    with ExitStack() as stack:
        managers = {what: stack.enter_context(place.manager(_job(what))) for what in states}
        saves = {what: Saves(managers[what], state) for what, state in states.items()}
        settle = settling(*saves.values())
        yield _compared(f"{title}: save", take_turns({what: each.save for what, each in saves.items()}, rounds, settle))
        acts = {what: each.save_async for what, each in saves.items()}
        yield _compared(f"{title}: save_async", take_turns(acts, rounds, settle))
    with ExitStack() as stack:
        readers = {what: stack.enter_context(place.reader(_job(what))) for what in states}
        loads = {what: each.load for what, each in readers.items()}
        yield _compared(f"{title}: load, warm", take_turns(loads, rounds))
        rooms = {what: room_for(state) for what, state in states.items()}
        into = {what: _into(readers[what], rooms[what]) for what in states}
        yield _compared(f"{title}: load into tensors that are there, warm", take_turns(into, rounds))
    for what, state in states.items():
        check_same(rooms[what], state)


def _job(what: str) -> str:
    return what.replace(",", "").replace(" ", "-")


def _into(reader: CheckpointReader, room: State) -> Callable[[], object]:
    return lambda: reader.load(into=room)


def _compared(title: str, turns: Turns) -> Table:
    small, large = turns
    rows = [taken(name, each) for name, each in turns.items()]
    return Table(title, [*rows, times(f"{small} / {large}", turns[small], turns[large], target=MOST_OF_ONE)])
