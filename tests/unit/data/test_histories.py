"""Whatever a job lives through, every sample of an epoch comes once with respect to what was committed: for every
format, uneven and empty files, any order, any tail, and any sequence of commits, crashes and world sizes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pytest
from hypothesis import Phase, assume, given, note, seed, settings
from hypothesis import strategies as st

from strata.data import making, runs
from strata.data.loader import Loader
from strata.data.mixing import Mix
from strata.data.sampler import ResumableSampler
from tests.unit.data.jobs import WORLDS, Event, Job, Rank, histories
from tests.unit.data.making import KINDS
from tests.unit.data.oracles import Content, Epochs, OfEpochs, OfMix, Order, Source, raw_source, written_source

# Of more workers than there are processors.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]

SHARDS = st.integers(1, 15)
BATCHES = st.integers(1, 12)
COUNTS = st.lists(st.sampled_from([0, 1, 3, 8, 13, 0, 21]), min_size=1, max_size=5).map(tuple)
ALL_KINDS = [*KINDS, "files"]
LAST = 100
"""More steps than any epoch here has."""


def some_and_many(some: int, many: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("examples", [some, pytest.param(many, marks=pytest.mark.long)])


def examined(examples: int, what: str = "", phases: Sequence[Phase] = tuple(Phase)) -> Callable[[Any], Any]:
    """Where examples are the same for the same code, tests of another name have others."""

    def apply(test: Any) -> Any:
        chosen = settings(max_examples=examples, phases=phases)(test)
        assert settings.default is not None
        return seed(crc32(what.encode()))(chosen) if settings.default.derandomize else chosen

    return apply


@st.composite
def orders(draw: st.DrawFn, sizes: st.SearchStrategy[int] = BATCHES, shards: st.SearchStrategy[Any] = SHARDS) -> Order:
    size = draw(sizes)
    return Order(
        size=size,
        shard_size=draw(shards),
        streams=draw(st.sampled_from([None, *(each for each in range(1, size + 1) if size % each == 0)])),
        window=draw(st.integers(1, 4)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**65)),
        tail=draw(st.sampled_from(["drop", "pad", "short"])),
    )


def kept(order: Order, total: int) -> Order:
    """What fills no batch is not dropped as a whole."""
    return order._replace(tail="short") if order.tail == "drop" and total < order.size else order


@contextmanager
def planned(run: int, plan: int) -> Iterator[None]:
    """Runs of so many batches at most, and so many samples whose places are computed together. Forked workers, too."""
    with mock.patch.object(making, "MOST_BATCHES", run), mock.patch.object(runs, "PLAN_SAMPLES", plan):
        yield


RUNS = st.sampled_from([1, 2, 256])
PLANS = st.sampled_from([1, 9, 30, runs.PLAN_SAMPLES])
"""Runs that have enough samples by themselves, and runs that are planned with those that follow."""


class Written:
    """Datasets on disk, each written once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: dict[Any, Source] = {}

    def __call__(self, kind: str, counts: tuple[int, ...], is_bare: bool = False) -> Source:
        key = kind, counts, is_bare
        if key not in self._sources:
            folder = self._folder / str(len(self._sources))
            is_raw = kind == "files"
            made = raw_source(folder, counts) if is_raw else written_source(folder, kind, counts, is_bare=is_bare)
            self._sources[key] = made
        return self._sources[key]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("histories"))


# -- the loader ------------------------------------------------------------------------------------------------------


def loader_of(source: Source, order: Order, **given: Any) -> Loader:
    return Loader(source.index, threads=1, **order.settings(), **given)


def oracle_of(source: Source, order: Order) -> OfEpochs:
    def alone(epoch: int) -> Iterator[Content]:
        with loader_of(source, order, epoch=epoch) as loader:
            yield from loader

    return OfEpochs(Epochs(source, order), alone)


def loader_job(source: Source, order: Order, world: int, workers: "Workers | None" = None, **given: Any) -> Job:
    order = kept(order, len(source.rows))

    def make(rank: int, world: int) -> Rank:
        loader = loader_of(source, order, rank=rank, world_size=world, **given)
        made = Rank(loader, loader.__iter__, loader.close)
        return made if workers is None else workers.instead(made)

    return Job(make, oracle_of(source, order), world)


@some_and_many(10, 200)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_sample_comes_once_whatever_happens(written: Written, kind: str, examples: int) -> None:
    @examined(examples, kind)
    @given(
        files=st.tuples(COUNTS, st.booleans()),
        order=orders(shards=st.one_of(st.none(), SHARDS)),
        world=st.sampled_from(WORLDS),
        sizes=st.tuples(RUNS, PLANS),
        memory=st.sampled_from([1, 1 << 30]),
        history=histories(),
    )
    def lives(*, files: Any, order: Order, world: int, sizes: Any, memory: int, history: list[Event]) -> None:
        note(f"{files=} {order=} {world=} {sizes=} {memory=} {history=}")
        with planned(*sizes):
            loader_job(written(kind, *files), order, world, memory_bytes=memory).live(history, LAST)

    lives()


# -- a sampler -------------------------------------------------------------------------------------------------------


def sampler_job(total: int, order: Order, world: int) -> Job:
    order = kept(order, total)

    def make(rank: int, world: int) -> Rank:
        sampler = ResumableSampler(total, rank=rank, world_size=world, **order.settings())
        return Rank(sampler, lambda: map(_numbered, sampler.over(sampler)), lambda: None)

    def alone(epoch: int) -> Iterator[Content]:
        return map(_numbered, ResumableSampler(total, epoch=epoch, **order.settings()))

    return Job(make, OfEpochs(Epochs(Source([(number,) for number in range(total)]), order), alone), world)


def _numbered(batch: list[int]) -> Content:
    return {"sample": np.array(batch, np.int64)}


@some_and_many(40, 600)
def test_a_sampler_gives_every_sample_once_whatever_happens(examples: int) -> None:
    @examined(examples)
    @given(st.integers(0, 90), orders(), st.sampled_from(WORLDS), histories())
    def lives(total: int, order: Order, world: int, history: list[Event]) -> None:
        note(f"{total=} {order=} {world=} {history=}")
        sampler_job(total, order, world).live(history, LAST)

    lives()


# -- a mix -----------------------------------------------------------------------------------------------------------


class Mixed:
    """Loaders and their weights, as each rank makes them."""

    def __init__(self, datasets: list[tuple[Source, Order, float]], seed: int) -> None:
        self._datasets, self._seed = datasets, seed
        self.epochs = [Epochs(source, order) for source, order, _ in datasets]

    def mix(self, stack: ExitStack, **given: Any) -> Mix:
        loaders = {}
        for number, (source, order, weight) in enumerate(self._datasets):
            loader = loader_of(source, order, map=partial(_said, number), **given)
            loaders[stack.enter_context(loader)] = weight
        return Mix(loaders, self._datasets[0][1].size, self._seed)

    def alone(self) -> Iterator[Content]:
        with ExitStack() as stack:
            yield from self.mix(stack)

    def rank(self, rank: int, world: int) -> Rank:
        stack = ExitStack()
        mix = self.mix(stack, rank=rank, world_size=world)
        return Rank(mix, mix.__iter__, stack.close)


def _said(number: int, batch: Content) -> Content:
    """Whose batch it is."""
    return {**batch, "dataset": np.full(len(next(iter(batch.values()))), number)}


@st.composite
def mixes(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...], Order, float]]:
    size = draw(BATCHES)
    one = st.tuples(st.sampled_from(ALL_KINDS), COUNTS, orders(st.just(size)), st.floats(0.1, 10))
    return draw(st.lists(one, min_size=1, max_size=3))


def mixed_of(written: Written, mix: list[tuple[str, tuple[int, ...], Order, float]], seed: int) -> Mixed:
    mixed = Mixed([(written(kind, counts), order, weight) for kind, counts, order, weight in mix], seed)
    assume(all(epochs.batches for epochs in mixed.epochs))
    return mixed


@some_and_many(10, 250)
def test_a_mix_gives_every_sample_of_each_dataset_once_whatever_happens(written: Written, examples: int) -> None:
    @examined(examples)
    @given(mixes(), st.integers(), st.sampled_from(WORLDS), histories("epoch"))
    def lives(mix: Any, seed: int, world: int, history: list[Event]) -> None:
        note(f"{mix=} {seed=} {world=} {history=}")
        mixed = mixed_of(written, mix, seed)
        Job(mixed.rank, OfMix(mixed.epochs, mixed.alone()), world).live(history, 20)

    lives()


# -- the workers of a DataLoader -------------------------------------------------------------------------------------


class Workers:
    """DataLoaders, each with another number of workers."""

    def __init__(self, numbers: list[int], *, stay: bool, start: str = "fork") -> None:
        self._said = f"Workers({numbers}, {stay=}, {start=})"
        self._numbers, self._stay, self._start = cycle(numbers), stay, start

    def __repr__(self) -> str:
        return self._said

    def instead(self, rank: Rank) -> Rank:
        """The rank, whose batches come from workers."""
        data = pytest.importorskip("torch.utils.data")
        count = next(self._numbers)
        batches = data.DataLoader(
            rank.cursor.dataset(),
            batch_size=None,
            num_workers=count,
            multiprocessing_context=self._start if count else None,
            persistent_workers=self._stay and count > 0,
        )
        return replace(rank, begin=lambda: map(_arrays, rank.cursor.over(batches)))


def _arrays(batch: dict[str, Any]) -> Content:
    """Of tensors, which a DataLoader makes of numbers."""
    return {name: np.asarray(values) for name, values in batch.items()}


WORKERS = st.builds(Workers, st.lists(st.sampled_from([3, 2, 1, 0]), min_size=1, max_size=3), stay=st.booleans())
AS_FOUND = (Phase.reuse, Phase.generate)
"""To make an example smaller would take minutes, with processes in each."""
MANY = st.lists(st.sampled_from([8, 0, 13, 21, 1]), min_size=3, max_size=5).map(tuple)
"""Files with a batch for each worker, and more."""


@some_and_many(5, 60)
def test_workers_give_every_sample_once_whatever_happens(written: Written, examples: int) -> None:
    @examined(examples, phases=AS_FOUND)
    @given(
        files=st.tuples(st.sampled_from(ALL_KINDS), MANY),
        order=orders(st.integers(1, 5), st.one_of(st.none(), SHARDS)),
        sizes=st.tuples(RUNS, PLANS),
        workers=WORKERS,
        history=histories("leave", "stale", worlds=[1, 2], most=4),
    )
    def lives(*, files: Any, order: Order, sizes: Any, workers: Workers, history: list[Event]) -> None:
        note(f"{files=} {order=} {sizes=} {workers=} {history=}")
        with planned(*sizes):
            loader_job(written(*files), order, 1, workers).live(history, LAST)

    lives()


@some_and_many(5, 60)
def test_workers_give_every_sample_of_a_mix_once_whatever_happens(written: Written, examples: int) -> None:
    @examined(examples, "mix", AS_FOUND)
    @given(mixes(), st.integers(), WORKERS, histories("epoch", "leave", "stale", worlds=[1, 2], most=4))
    def lives(mix: Any, seed: int, workers: Workers, history: list[Event]) -> None:
        note(f"{mix=} {seed=} {workers=} {history=}")
        mixed = mixed_of(written, mix, seed)
        oracle = OfMix(mixed.epochs, mixed.alone())
        Job(lambda rank, world: workers.instead(mixed.rank(rank, world)), oracle, 1).live(history, 25)

    lives()


SPAWNED = [
    [Event("take", 3), Event("commit"), Event("take", 2), Event("back"), Event("take", 9), Event("drop")],
    pytest.param(
        [Event("take", 3), Event("commit"), Event("crash", 2, ahead=2), Event("take", 2), Event("resize", 1)],
        marks=pytest.mark.long,
    ),
]


@pytest.mark.parametrize("history", SPAWNED)
def test_spawned_workers_give_every_sample_once(written: Written, history: list[Event]) -> None:
    order = Order(size=4, shard_size=5, streams=2, window=2, shuffle=True, seed=3, tail="pad")
    source = written("jsonl-small-blocks", (11, 0, 22))
    loader_job(source, order, 1, Workers([1, 2], stay=True, start="spawn")).live(history, LAST)
