"""Makes the batches of an order: runs of them, some begun before they are asked for, by threads.

What makes them goes from process to process, forked or pickled: threads, and the blocks that are held in memory, are of
the process that uses them, and made there.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.core.ids import check_int
from strata.data.columns import Kept, Lying, columns_of
from strata.data.held import Decode, Decoded, Held
from strata.data.index import DatasetIndex
from strata.data.output import Finish
from strata.data.runs import MOST_BATCHES, RUN_BYTES, Batch, Order, Runs, Share
from strata.data.skipping import UNREADABLE, OnDamage, SkippedBlock, Skips, check_on_damage
from strata.data.stretches import Missing
from strata.errors import InvalidInput

LYING_RUN_BYTES = 3 * RUN_BYTES
"""Of values that are read one by one: nothing is gathered from them, and there is more to do at once in each file."""
AHEAD = 2
"""Runs that are put together before they are asked for."""

OnMissing: TypeAlias = Callable[[int, int], None]
"""Told the number of a batch and how many samples were left out of it, when that is given out."""


class Making:
    """This rank's share of any batch of any order of a dataset, as a training loop wants it."""

    def __init__(
        self,
        index: DatasetIndex,
        share: Share,
        columns: Sequence[str] | None,
        finish: Finish,
        *,
        memory_bytes: int,
        threads: int,
        on_damage: OnDamage = "raise",
    ) -> None:
        check_on_damage(on_damage)
        check_int(memory_bytes, "memory_bytes")
        check_int(threads, "threads", least=1)
        self._index, self._share, self._columns, self._finish = index, share, columns, finish
        self._memory_bytes, self._threads = memory_bytes, threads
        self._skips_damage = on_damage == "skip"
        self._here: _Here | None = None
        self._row_bytes, self._run_bytes = 0.0, RUN_BYTES
        self._is_closed = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": None}

    def held(self, among: int = 1) -> Held:
        """The blocks of this process, one of so many that share the memory."""
        return self._of_process(among).held

    def skipped(self) -> list[SkippedBlock]:
        """What cannot be read, as far as this process has found, and how often it was missed."""
        return self._of_process().skips.blocks()

    def count_skipped(self, samples: NDArray[np.int64]) -> int:
        """How many of these samples lie in blocks that this process has found it cannot read."""
        skips = self._of_process().skips
        return sum(block in skips for block in self._index.locate(samples)[0].tolist())

    def batches(
        self, order: Order, numbers: range, among: int = 1, on_missing: OnMissing | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """These of the epoch, each with its number. An error comes where its batch would have."""
        runs = self._runs(order, among)
        with ThreadPoolExecutor(AHEAD, "strata-batches") as threads:
            ahead = _Ahead(partial(self._made, runs), partial(self._run_length, order), threads, numbers)
            try:
                for made in ahead:
                    for place, batch in enumerate(made.batches):  # fewer than numbers if there was an error
                        self._count(made, place, on_missing)
                        yield made.numbers[place], batch
                    if made.error is not None:
                        self._check_open()  # if it was closed meanwhile, that is why
                        raise made.error
            finally:
                ahead.stop()

    def maker(self, order: Order, among: int = 1, on_missing: OnMissing | None = None) -> Callable[[int], Any]:
        """Makes any batch of the epoch, when it is asked to and by the thread that asks."""
        runs = self._runs(order, among)

        def make(number: int) -> Any:
            made = self._made(runs, range(number, number + 1))
            if made.error is not None:
                raise made.error
            self._count(made, 0, on_missing)
            return made.batches[0]

        return make

    def take(self, share: Share) -> None:
        """Of the batches that are asked for from now on."""
        self._share = share

    def close(self) -> None:
        self._is_closed = True
        if self._here is not None and self._here.process == os.getpid():
            self._here.held.close()

    def _of_process(self, among: int = 1) -> "_Here":
        """In a forked child what the parent has is no use: the threads that read its blocks are not there."""
        if self._here is None or self._here.process != os.getpid():
            decode = partial(_decoded, weakref.WeakMethod(self._decode))
            held = Held(decode, self._memory_bytes // among, max(1, self._threads // among))
            self._here = _Here(os.getpid(), held, Skips())
        return self._here

    def _runs(self, order: Order, among: int) -> Runs:
        self._check_open()
        here = self._of_process(among)
        return Runs(order, self._share, self._index, here.held, here.skips if self._skips_damage else None)

    def _count(self, made: "_Made", place: int, on_missing: "OnMissing | None") -> None:
        """What is missing from the batch that is given out now."""
        if place in made.missing:
            missed = self._of_process().skips.count(made.missing[place])
            if on_missing is not None:
                on_missing(made.numbers[place], missed)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidInput(
                "the loader is closed, and gives no batches any more: make another like it, and let it go on with "
                "load_state_dict(closed_loader.state_dict())"
            )

    def _made(self, runs: Runs, numbers: range) -> "_Made":
        """By a thread of its own."""
        made: list[Any] = []
        missing: Missing = {}
        try:
            run = runs.begin(numbers)()
            missing = run.missing
            made.extend(self._finish(batch or self._nothing()) for batch in run.batches())  # those before an error, too
        except Exception as error:  # noqa: BLE001  raised where the batch is asked for
            return _Made(numbers, made, missing, error)
        return _Made(numbers, made, missing, None)

    def _nothing(self) -> Batch:
        """The share of a rank that gets no sample of a batch: the columns that the other ranks have, without a row."""
        empty = columns_of(self._index.no_rows(self._columns), "no rows", kept=self._finish.keeps_arrow)
        return {name: column.none() if isinstance(column, Kept) else column.room(0) for name, column in empty.items()}

    def _run_length(self, order: Order) -> int:
        """Batches. The first run is one batch, which comes the sooner; the others are as large as they should be."""
        if not self._row_bytes:
            return 1
        mine = max(1, order.global_batch_size // self._share.world)
        return max(1, min(MOST_BATCHES, int(self._run_bytes / (mine * self._row_bytes))))

    def _decode(self, block: int) -> Decoded:
        try:
            decoded = self._columns_of(block)
        except UNREADABLE as error:
            if not self._skips_damage:
                raise
            file, samples = self._index.file_and_samples(block)
            self._of_process().skips.note(block, file, samples, error)
            return {}
        size = sum(column.nbytes for column in decoded.values())
        self._run_bytes = LYING_RUN_BYTES if _has_lying(decoded) else RUN_BYTES
        self._row_bytes = max(1.0, size / max(1, self._index.block(block).rows))
        return decoded

    def _columns_of(self, block: int) -> Decoded:
        index = self._index
        parts = index.parts(block, self._columns)
        found: Decoded = columns_of(parts.table, index.place_of(block), kept=self._finish.keeps_arrow)
        if parts.places:
            file, samples = index.file_and_samples(block)
            found |= {name: Lying(file, places, samples) for name, places in parts.places.items()}
        return {name: found[name] for name in index.schema.names if name in found}


def _has_lying(decoded: Decoded) -> bool:
    return any(isinstance(column, Lying) for column in decoded.values())


def _decoded(decode: "weakref.WeakMethod[Decode]", block: int) -> Decoded:
    """The threads that read keep no loader that was dropped: nobody waits for what they read then."""
    found = decode()
    return {} if found is None else found(block)


class _Here(NamedTuple):
    """What is of one process."""

    process: int
    held: Held
    skips: Skips


class _Made(NamedTuple):
    """Batches of these numbers, as many as could be made, and why there is not another."""

    numbers: range
    batches: list[Any]
    missing: Missing
    error: Exception | None


class _Ahead:
    """Runs in order, some of them begun before they are asked for."""

    def __init__(
        self, make: Callable[[range], _Made], length: Callable[[], int], threads: ThreadPoolExecutor, numbers: range
    ) -> None:
        self._make, self._length, self._threads = make, length, threads
        self._left = numbers
        self._under_way: deque[Future[_Made]] = deque()

    def __iter__(self) -> Iterator[_Made]:
        self._begin()
        while self._under_way:
            made = self._under_way.popleft().result()
            while len(self._under_way) < AHEAD and self._begin():
                pass
            yield made

    def _begin(self) -> bool:
        if not self._left:
            return False
        length = self._length()
        self._under_way.append(self._threads.submit(self._make, self._left[:length]))
        self._left = self._left[length:]
        return True

    def stop(self) -> None:
        """What is under way is of no use any more."""
        for made in self._under_way:
            made.cancel()
