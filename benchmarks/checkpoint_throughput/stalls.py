"""What `save_async` keeps its caller, beside a bare copy of the same bytes; and the first save, on its own."""

import ctypes
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks import Row, Table
from benchmarks.checkpoint_throughput.dcp import Dcp, DcpSaves
from benchmarks.checkpoint_throughput.places import Place
from benchmarks.checkpoint_throughput.saves import Saves, settling
from benchmarks.checkpoint_throughput.states import State, bytes_of, room_for
from benchmarks.storage.turns import Turn, median_seconds, take_turns, taken, timed, times

ROUNDS, FIRST_ROUNDS = 7, 2
PIECE_BYTES = 4 << 20
MOST_OF_COPY = 1.3
STRATA, DCP = "Strata save_async", "DCP async_save"


def tables(place: Place, state: State, how: Dcp) -> Iterator[Table]:
    yield later(place, state, how, ROUNDS)
    yield _first(place, state, how)


def later(place: Place, state: State, how: Dcp | None, rounds: int) -> Table:
    """From the second save on."""
    room = room_for(state)
    copies: dict[str, Callable[[], object]] = {
        "memcpy, one thread": lambda: copy(state, room, 1),
        "memcpy, two threads": lambda: copy(state, room, 2),
    }
    peer = None if how is None else DcpSaves(how, state)
    with place.manager("stalls") as manager:
        strata = Saves(manager, state)
        manager.prepare(state)
        saves: dict[str, Callable[[], object]] = {STRATA: strata.save_async}
        if peer is not None:
            saves[DCP] = peer.save_async
        turns = take_turns(copies | saves, rounds, settling(strata, peer))
    faster = min(copies, key=lambda name: median_seconds(turns[name]))
    rows = [taken(name, each) for name, each in turns.items()]
    rows.append(times(f"{STRATA} / {faster}", turns[STRATA], turns[faster], target=MOST_OF_COPY))
    if peer is not None:
        peer.close()
        rows.append(times(f"{STRATA} / {DCP}", turns[STRATA], turns[DCP]))
    title = f"What a save of {bytes_of(state) >> 20:,} MiB keeps its caller, {place.name}, from the second on"
    return Table(title, rows)


def _first(place: Place, state: State, how: Dcp) -> Table:
    """The memory that a snapshot needs is touched for the first time."""
    found: dict[str, list[Turn]] = {}

    def note(what: str, act: Callable[[], object]) -> None:
        found.setdefault(what, []).append(timed(act))

    for number in range(FIRST_ROUNDS):
        with place.manager(f"first-{number}") as manager:
            note("Strata save_async, not prepared", Saves(manager, state).save_async)
        with place.manager(f"prepared-{number}") as manager:
            note("Strata prepare", partial(manager.prepare, state))
            note("Strata save_async, prepared", Saves(manager, state).save_async)
        peer = DcpSaves(how, state)
        note(DCP, peer.save_async)
        peer.close()
    rows = [_seconds(what, turns) for what, turns in found.items()]
    return Table(f"The first save of {bytes_of(state) >> 20:,} MiB, {place.name}", rows)


def _seconds(what: str, turns: Sequence[Turn]) -> Row:
    each = [turn.seconds for turn in turns]
    return Row(what, statistics.median(each), min(each), "s")


def copy(state: State, room: State, threads: int) -> None:
    """Every tensor, piece by piece, by so many threads at once."""
    left = iter(list(_pieces(state, room)))
    lock = threading.Lock()

    def some() -> None:
        while True:
            with lock:
                piece = next(left, None)
            if piece is None:
                return
            ctypes.memmove(*piece)

    others = [threading.Thread(target=some) for _ in range(threads - 1)]
    for other in others:
        other.start()
    some()
    for other in others:
        other.join()


def _pieces(state: State, room: State) -> Iterator[tuple[int, int, int]]:
    for name, tensor in state.items():
        source, target = tensor.data_ptr(), room[name].data_ptr()
        for start in range(0, tensor.nbytes, PIECE_BYTES):
            yield target + start, source + start, min(PIECE_BYTES, tensor.nbytes - start)
