"""What a dataset must give: known from what was written and from the order alone, whatever the ranks lived through.

A row is recognised by everything in it, so that a sample with another's values is no sample at all.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from strata.core.orders import ElasticOrder, EpochOrder, ShardLayout, Tail
from strata.data.formats import format_of
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.loader import shard_size_for
from strata.data.position import streams_for
from tests.unit.data.making import KINDS, TEXTS, table

Content: TypeAlias = dict[str, np.ndarray[Any, Any]]
Place: TypeAlias = tuple[int, int]
"""An epoch and a batch of it."""
Given: TypeAlias = list[tuple[Place, Content]]


class Order(NamedTuple):
    """How an epoch is dealt out."""

    size: int
    shard_size: int | None
    streams: int | None
    window: int
    shuffle: bool
    seed: int
    tail: Tail

    def settings(self) -> dict[str, Any]:
        """For a loader or a sampler."""
        return {
            "global_batch_size": self.size,
            **({} if self.shard_size is None else {"shard_size": self.shard_size}),
            "streams": self.streams,
            "window_shards": self.window,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "tail": self.tail,
        }


class Source:
    """Samples, and the rows by which each is recognised."""

    def __init__(self, rows: list[tuple[Any, ...]], index: DatasetIndex | None = None) -> None:
        self.rows, self._index = rows, index
        self._numbers = {row: number for number, row in enumerate(rows)}
        assert len(self._numbers) == len(rows), "rows that cannot be told apart prove nothing"

    @property
    def index(self) -> DatasetIndex:
        assert self._index is not None, "not of files"
        return self._index

    def shard_size(self) -> int:
        return shard_size_for(self.index)

    def numbers(self, content: Content) -> list[int]:
        """Of the samples of a batch, each with all that was written for it."""
        columns = [[_plain(value) for value in values.tolist()] for values in content.values()]
        return [self._numbers[row] for row in zip(*columns, strict=True)]


def _plain(value: Any) -> Any:
    """To be compared: numpy has no number for what is missing, and lists are no keys."""
    if isinstance(value, list):
        return tuple(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def written_source(folder: Path, kind: str, counts: Sequence[int], *, is_bare: bool) -> Source:
    """Files of so many rows each; one without rows has no byte if it `is_bare`, where the format allows that."""
    folder.mkdir(parents=True)
    start = 0
    for number, count in enumerate(counts):
        made = KINDS[kind]
        bare = is_bare and not count and not kind.startswith("parquet")
        file = folder / f"part-{number:03}{made.suffix}"
        file.write_bytes(b"" if bare else made.write(table(count, start)))
        start += count
    expected: pa.Table = KINDS[kind].expected(table(start))
    rows = [*zip(*(map(_plain, column.to_pylist()) for column in expected.columns), strict=True)]
    return Source(rows, index_dataset(folder, KINDS[kind].format))


def raw_source(folder: Path, counts: Sequence[int]) -> Source:
    """Files that are one sample each, in folders of so many, and one; every third one is empty."""
    rows = []
    for number, count in enumerate([*counts, 1]):
        inner = folder / f"{number:03}"
        inner.mkdir(parents=True)
        for each in range(count):
            data = b"" if each % 3 == 1 else (TEXTS[each % len(TEXTS)] * each).encode()
            (inner / f"{each:03}").write_bytes(data)
            rows.append((f"{number:03}/{each:03}", data))
    return Source(rows, index_dataset(folder, format_of("files")))


class Epochs:
    """The epochs of a source in an order."""

    def __init__(self, source: Source, order: Order) -> None:
        self.source, self.order = source, order
        size = source.shard_size() if order.shard_size is None else order.shard_size
        self.layout = ShardLayout(len(source.rows), size)

    @property
    def batches(self) -> int:
        return self.of(0).batches

    def of(self, epoch: int) -> ElasticOrder:
        order = self.order
        streams = order.streams or streams_for(self.layout, order.size, order.window, order.shuffle)
        return ElasticOrder(
            self.layout,
            order.seed,
            epoch,
            order.shuffle,
            order.size,
            streams=streams,
            window_shards=order.window,
            tail=order.tail,
        )

    def samples(self, place: Place) -> list[int]:
        epoch, batch = place
        samples: list[int] = self.of(epoch).batch(batch).tolist()
        return samples

    def whole(self, epoch: int) -> Counter[int]:
        """How often each sample comes in the epoch: once, but for the end of its line."""
        order = EpochOrder(self.layout, self.order.seed, epoch, self.order.shuffle)
        shards = order.shards_at(np.arange(self.layout.shard_count)).tolist()
        line = [sample for shard in shards for sample in range(*self.layout.bounds(shard))]
        size, tail = self.order.size, self.order.tail
        left = len(line) % size
        if tail == "drop":
            return Counter(line[: len(line) - left])
        again = (line * size)[: size - left] if tail == "pad" and left else []
        return Counter(line + again)


class Oracle(Protocol):
    """What a job is compared with. A place is where it stands."""

    def batch(self, place: Place) -> Content | None:
        """Bit for bit; None at the end of an epoch."""

    def after(self, place: Place) -> Place: ...

    def is_at(self, state: dict[str, Any], place: Place) -> bool: ...

    def check(self, given: Given) -> None:
        """That every sample of each epoch came as often as it should."""


class OfEpochs:
    """For a loader or a sampler: the batches of a world of one, each seen to hold the samples of the order."""

    def __init__(self, epochs: Epochs, alone: Callable[[int], Iterator[Content]]) -> None:
        """`alone` gives a whole epoch."""
        self._epochs, self._alone = epochs, alone
        self._seen: dict[int, list[Content]] = {}

    def batch(self, place: Place) -> Content | None:
        epoch, batch = place
        if batch == self._epochs.batches:
            return None
        if epoch not in self._seen:
            found = self._seen[epoch] = list(self._alone(epoch))
            for number in range(self._epochs.batches):
                assert self._epochs.source.numbers(found[number]) == self._epochs.samples((epoch, number))
            assert len(found) == self._epochs.batches
        return self._seen[epoch][batch]

    def after(self, place: Place) -> Place:
        epoch, batch = place
        return (epoch + 1, 0) if batch == self._epochs.batches else (epoch, batch + 1)

    def is_at(self, state: dict[str, Any], place: Place) -> bool:
        return (state["epoch"], state["batch"]) == place

    def check(self, given: Given) -> None:
        for epoch, batches in _passes(given):
            counted = Counter(number for batch in batches for number in self._epochs.source.numbers(batch))
            if len(batches) == self._epochs.batches:
                assert counted == self._epochs.whole(epoch)
            else:
                assert counted <= self._epochs.whole(epoch)


def _passes(given: Given) -> Iterator[tuple[int, list[Content]]]:
    """Each time that an epoch was gone through, from its first batch on."""
    found: list[tuple[int, list[Content]]] = []
    for (epoch, batch), content in given:
        if batch == 0:
            found.append((epoch, []))
        assert found[-1][0] == epoch
        assert len(found[-1][1]) == batch
        found[-1][1].append(content)
    return iter(found)


class OfMix:
    """For a mix: what a mix of a world of one gives without a stop. Places are counted as batches of an epoch 0 that
    has no end."""

    def __init__(self, datasets: Sequence[Epochs], alone: Iterator[Content]) -> None:
        self._datasets, self._alone = datasets, alone
        self._seen: list[Content] = []

    def batch(self, place: Place) -> Content:
        while len(self._seen) <= place[1]:
            self._seen.append(next(self._alone))
        return self._seen[place[1]]

    def after(self, place: Place) -> Place:
        return 0, place[1] + 1

    def is_at(self, state: dict[str, Any], place: Place) -> bool:
        return bool(sum(state["given"]) == place[1])

    def check(self, given: Given) -> None:
        assert [place for place, _ in given] == [(0, number) for number in range(len(given))]
        for number, data in enumerate(self._datasets):
            batches = [_of_dataset(content, number) for _, content in given if content["dataset"][0] == number]
            found = [data.source.numbers(batch) for batch in batches]
            assert found == [data.samples(divmod(place, data.batches)) for place in range(len(found))]
            for epoch in range(len(found) // data.batches):
                own = found[epoch * data.batches : (epoch + 1) * data.batches]
                assert Counter(sample for batch in own for sample in batch) == data.whole(epoch)


def _of_dataset(content: Content, number: int) -> Content:
    """Without the column that says which dataset's it is, and it is the same in all of the batch."""
    assert (content["dataset"] == number).all()
    return {name: values for name, values in content.items() if name != "dataset"}
