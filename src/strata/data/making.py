"""Makes the batches of an order: runs of them, some begun before they are asked for, by threads.

What makes them goes from process to process, forked or pickled: threads, and the blocks that are held in memory, are of
the process that uses them, and made there.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from strata.core.orders import ElasticOrder
from strata.data.columns import columns_of
from strata.data.held import Decoded, Held
from strata.data.index import DatasetIndex
from strata.data.output import Finish
from strata.data.runs import MOST_BATCHES, RUN_BYTES, Runs, Share

AHEAD = 2
"""Runs that are put together before they are asked for."""


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
    ) -> None:
        self._index, self._share, self._columns, self._finish = index, share, columns, finish
        self._memory_bytes, self._threads = memory_bytes, threads
        self._here: tuple[int, Held] | None = None
        self._row_bytes = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": None}

    def held(self, among: int = 1) -> Held:
        """The blocks of this process, one of so many that share the memory. In a forked child those of the parent are
        no use: the threads that read them are not there."""
        if self._here is None or self._here[0] != os.getpid():
            held = Held(self._decode, self._memory_bytes // among, max(1, self._threads // among))
            self._here = os.getpid(), held
        return self._here[1]

    def batches(self, order: ElasticOrder, numbers: range, among: int = 1) -> Iterator[tuple[int, Any]]:
        """These of the epoch, each with its number. An error comes where its batch would have."""
        runs = Runs(order, self._share, self._index, self.held(among))
        with ThreadPoolExecutor(AHEAD, "strata-batches") as threads:
            ahead = _Ahead(partial(self._made, runs), partial(self._run_length, order), threads, numbers)
            try:
                for made in ahead:
                    yield from zip(made.numbers, made.batches, strict=False)  # fewer if there was an error
                    if made.error is not None:
                        raise made.error
            finally:
                ahead.stop()

    def close(self) -> None:
        if self._here is not None and self._here[0] == os.getpid():
            self._here[1].close()

    def _made(self, runs: Runs, numbers: range) -> "_Made":
        """By a thread of its own."""
        made: list[Any] = []
        try:
            made.extend(map(self._finish, runs.begin(numbers)().batches()))  # those before an error are given out
        except Exception as error:  # noqa: BLE001  raised where the batch is asked for
            return _Made(numbers, made, error)
        return _Made(numbers, made, None)

    def _run_length(self, order: ElasticOrder) -> int:
        """Batches. The first run is one batch, which comes the sooner; the others are as large as they should be."""
        if not self._row_bytes:
            return 1
        mine = max(1, order.global_batch_size // self._share.world)
        return max(1, min(MOST_BATCHES, int(RUN_BYTES / (mine * self._row_bytes))))

    def _decode(self, block: int) -> Decoded:
        decoded = columns_of(self._index.read(block, self._columns), self._index.place_of(block))
        size = sum(column.nbytes for column in decoded.values())
        self._row_bytes = max(1.0, size / max(1, self._index.block(block).rows))
        return decoded


class _Made(NamedTuple):
    """Batches of these numbers, as many as could be made, and why there is not another."""

    numbers: range
    batches: list[Any]
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
