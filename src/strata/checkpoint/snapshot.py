"""A snapshot: a state copied into the images of its files, piece by piece, while the first pieces are being written.

    caller's thread    fills segments in order, with a second thread beside it; returns when the last is filled
    the writer         takes each segment once it is filled, and gives its memory back once it is written

Where the arena holds all of a snapshot the caller never waits for the writer. Where it does not, segments take turns in
it, and the caller waits for the disk, never for more memory.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from strata.checkpoint.frameworks import COPIED, Block, Copying, framework_named
from strata.checkpoint.moves import move_many
from strata.checkpoint.plan import ALIGNMENT, FilePlan
from strata.checkpoint.sources import Elsewhere, Room, Source
from strata.errors import InvalidInput

AnySource = TypeVar("AnySource", bound=Source)

SEGMENT_BYTES = 32 << 20
FIRST_BYTES = 4 << 20
"""The disk waits for the first to be filled, so it is a short one."""
SLOTS_LEAST = 2
PIECE_BYTES = 4 << 20
"""Copied by one thread before the other has its turn."""


class Segment(NamedTuple):
    """A stretch of a file's image, and where in the arena it lies."""

    file: int
    start: int
    end: int
    place: int


class Copy(NamedTuple, Generic[AnySource]):
    """Bytes of a tensor that go into a file's image."""

    source: AnySource
    start: int
    at: int
    size: int


def segments_of(files: Sequence[FilePlan], room: int, segment_bytes: int = SEGMENT_BYTES) -> list[Segment]:
    """How the images lie in an arena of so many bytes: one behind the other, or taking turns if it cannot hold all."""
    if sum(file.room for file in files) <= room:
        found: list[Segment] = []
        base = 0
        for number, file in enumerate(files):
            ends = [0, *range(min(FIRST_BYTES, segment_bytes), file.size, segment_bytes), file.size]
            found += [Segment(number, start, end, base + start) for start, end in pairwise(ends)]
            base += file.room
        return found
    segment_bytes = min(segment_bytes, room // SLOTS_LEAST // ALIGNMENT * ALIGNMENT)
    if not segment_bytes:
        raise InvalidInput(f"a budget of {room:,} bytes is too little for a snapshot: give it at least 64 MiB")
    slots = room // segment_bytes
    cuts = [
        (number, start, min(start + segment_bytes, file.size))
        for number, file in enumerate(files)
        for start in range(0, file.size, segment_bytes)
    ]
    return [Segment(*cut, turn % slots * segment_bytes) for turn, cut in enumerate(cuts)]


class Snapshot:
    """One filling of an arena. One thread fills it, another takes what is filled."""

    def __init__(self, files: Sequence[FilePlan], arena: Block) -> None:
        self.files = files
        self.segments = segments_of(files, len(arena))
        self._room = Room(arena)
        self._slots = len({segment.place for segment in self.segments})
        self._free = threading.Semaphore(self._slots)
        self.given_up: BaseException | None = None
        """Why nobody writes it any more."""

    @property
    def takes_turns(self) -> bool:
        """Whether the arena is too small for all of it at once."""
        return self._slots < len(self.segments)

    @property
    def arena(self) -> Block:
        return self._room.block

    @property
    def bases(self) -> dict[int, int]:
        """Where in the arena each file's image begins, if all of them lie there."""
        return {segment.file: segment.place - segment.start for segment in self.segments}

    def memory(self, segment: Segment) -> Block:
        """The segment's bytes, once it is filled and until it is released."""
        return self._room.block[segment.place : segment.place + segment.end - segment.start]

    def release(self, count: int = 1) -> None:
        """The oldest segments that are not released yet are written: their memory is free for others."""
        self._free.release(count)

    def give_up(self, error: BaseException) -> None:
        """Nobody writes any more: whoever fills stops, and raises this."""
        self.given_up = self.given_up or error
        self._free.release(len(self.segments) + 1)

    def fill(
        self, sources: Sequence[Source], filled: Callable[[int], None], can_wait: Callable[[Any], bool] | None = None
    ) -> Copying:
        """Copy everything, telling the number of each segment that is filled, in order.

        Returns when the state may be changed again: all of it but those arrays on devices that `can_wait`, if the arena
        holds everything. Their copies are what it returns; then nothing has been told yet.
        """
        if self.takes_turns:
            self._fill_in_turns(sources, filled)
            return COPIED
        on_devices = _on_devices(self.files, self.bases, sources)
        if not on_devices:
            self._fill_at_once(sources, filled)
            return COPIED
        now, later = _split(on_devices, can_wait)
        copying, going_on = self._begin(now), self._begin(later)
        self._fill_at_once(sources, lambda number: None)
        copying.wait()
        return going_on

    def _begin(self, copies: Iterable[Copy[Elsewhere]]) -> Copying:
        """Copies that go on by themselves; those that cannot are made here."""
        by_package: dict[str, list[tuple[Any, Block]]] = {}
        for source, start, at, size in copies:
            part = source.part(start, size)
            if part is None:
                source.read(start, size, self._room, at)
            else:
                by_package.setdefault(source.framework.name, []).append((part, self._room.block[at : at + size]))
        if not by_package:
            return COPIED
        return _All([framework_named(name).copy_out(pairs) for name, pairs in by_package.items()])

    def _fill_in_turns(self, sources: Sequence[Source], filled: Callable[[int], None]) -> None:
        left = iter(_all_copies(self.files, sources))
        current = next(left, None)
        for number, segment in enumerate(self.segments):
            self._free.acquire()
            if self.given_up is not None:
                raise self.given_up
            memory = self.memory(segment)
            _put_header(self.files[segment.file], segment, memory)
            while current is not None and current[0] == segment.file and current[1].at < segment.end:
                file, copy = current
                size = min(copy.size, segment.end - copy.at)
                copy.source.read(copy.start, size, self._room, segment.place + copy.at - segment.start)
                rest = Copy(copy.source, copy.start + size, copy.at + size, copy.size - size)
                current = (file, rest) if rest.size else next(left, None)
            filled(number)

    def _fill_at_once(self, sources: Sequence[Source], filled: Callable[[int], None]) -> None:
        for segment in self.segments:
            _put_header(self.files[segment.file], segment, self.memory(segment))
        ends = [segment.place + segment.end - segment.start for segment in self.segments]
        work = _Work(_batches(self.files, self.bases, sources, self._room), ends, filled)

        def copy_some() -> None:
            for batch in work.turns():
                batch.copy()

        second = threading.Thread(target=work.guarded(copy_some), name="strata-snapshot", daemon=True)
        second.start()
        work.guarded(copy_some)()
        second.join()
        work.finish()


class _All(list[Copying]):
    def wait(self) -> None:
        for each in self:
            each.wait()

    def hold(self) -> None:
        for each in self:
            each.hold()


class _Batch(NamedTuple):
    """What one thread copies before the other has its turn: from where to where in the arena it goes."""

    start: int
    end: int
    copy: Callable[[], None]


class _Work:
    """Batches of copies for two threads, in the order of the arena; what is filled is told in that order too."""

    def __init__(self, batches: Iterator[_Batch], ends: list[int], filled: Callable[[int], None]) -> None:
        self._batches, self._ends, self._filled = batches, ends, filled
        self._lock = threading.Lock()
        self._begun: dict[int, None] = {}
        self._told = 0
        self._errors: list[BaseException] = []

    def turns(self) -> Iterator[_Batch]:
        while not self._errors:
            with self._lock:
                batch = next(self._batches, None)
                if batch is None:
                    return
                begins = batch.start
                self._begun[begins] = None
            yield batch
            with self._lock:
                oldest = next(iter(self._begun))
                del self._begun[begins]
                if oldest == begins:  # all before the next oldest is there now
                    self._tell(next(iter(self._begun), batch.end))

    def guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        def guard() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001  raised by `finish`, in the caller's own thread
                self._errors.append(error)

        return guard

    def finish(self) -> None:
        if self._errors:
            raise self._errors[0]
        self._tell(self._ends[-1] if self._ends else 0)

    def _tell(self, up_to: int) -> None:
        while self._told < len(self._ends) and self._ends[self._told] <= up_to:
            self._filled(self._told)
            self._told += 1


def _all_copies(files: Sequence[FilePlan], sources: Sequence[Source]) -> Iterator[tuple[int, Copy[Source]]]:
    """In the order of the files."""
    for number, file in enumerate(files):
        for wanted, at in file.placed:
            if wanted.size:
                yield number, Copy(sources[wanted.tensor], wanted.start, at, wanted.size)


def _on_devices(files: Sequence[FilePlan], bases: dict[int, int], sources: Sequence[Source]) -> list[Copy[Elsewhere]]:
    """Copies that are begun, and then go on by themselves; each with its place in the arena."""
    if not any(source.on_device for source in sources):
        return []
    return [
        Copy(source, start, bases[file] + at, size)
        for file, (source, start, at, size) in _all_copies(files, sources)
        if isinstance(source, Elsewhere) and source.on_device
    ]


def _split(
    copies: Iterable[Copy[Elsewhere]], can_wait: Callable[[Any], bool] | None
) -> tuple[list[Copy[Elsewhere]], list[Copy[Elsewhere]]]:
    """Those that the caller must wait for, and the others."""
    now: list[Copy[Elsewhere]] = []
    later: list[Copy[Elsewhere]] = []
    for copy in copies:
        (later if can_wait is not None and can_wait(copy.source.value) else now).append(copy)
    return now, later


def _batches(
    files: Sequence[FilePlan], bases: dict[int, int], sources: Sequence[Source], room: Room
) -> Iterator[_Batch]:
    """In the order of the arena: neighbouring small copies together, large ones cut. Not those from devices."""
    addresses = np.array([source.address for source in sources], np.int64)
    lengths = np.array([source.size for source in sources], np.int64)
    for number, file in enumerate(files):
        tensors, starts, places, sizes = file.rows[file.rows[:, 3] > 0].T
        places = places + bases[number]
        is_small = (addresses[tensors] != 0) & (sizes <= PIECE_BYTES)
        assert (starts + sizes <= lengths[tensors]).all()
        assert (places + sizes <= len(room.block)).all()
        pieces = np.cumsum(sizes) // PIECE_BYTES
        cuts = np.flatnonzero(~is_small[1:] | ~is_small[:-1] | (pieces[1:] != pieces[:-1])) + 1
        for first, last in pairwise([0, *cuts.tolist(), len(sizes)]):
            if first == last:
                continue
            place, size = int(places[first]), int(sizes[first])
            if is_small[first]:
                some = slice(first, last)
                froms = addresses[tensors[some]] + starts[some]
                copy = partial(move_many, places[some] + room.address, froms, sizes[some])
                yield _Batch(place, int(places[last - 1] + sizes[last - 1]), copy)
            elif not sources[tensors[first]].on_device:
                yield from _pieces(sources[tensors[first]], int(starts[first]), size, room, place)


def _pieces(source: Source, start: int, size: int, room: Room, place: int) -> Iterator[_Batch]:
    """Of one that is large, or can only be had whole."""
    most = PIECE_BYTES if source.address else size
    for done in range(0, size, most):
        some = min(most, size - done)
        yield _Batch(place + done, place + done + some, partial(source.read, start + done, some, room, place + done))


def _put_header(file: FilePlan, segment: Segment, memory: Block) -> None:
    header = file.header[segment.start : segment.end]
    memory[: len(header)] = np.frombuffer(header, np.uint8)
