"""Several datasets mixed by weight: each batch is one loader's, and which one's is settled by the seed.

    mix = Mix({web: 0.7, books: 0.3}, global_batch_size=256, seed=7)
    for batch in mix: …         without end: a dataset that is through begins its next epoch
    mix.state_dict()            how many were given out of each, and where each loader stands

The k-th batch of a dataset with weight w comes at an instant between k / w and (k + 1) / w that the seed has drawn;
batches come in the order of their instants. So the order is irregular, the shares are right to about a batch at every
point, and what comes next follows from how many of each were given out, and from nothing else: not from the ranks.

In a job (loaders with a `dataset_id`) where its loaders stand says how many that are, so that ranks that have seen more
than others of the mix go on alike. One of them may have to begin again: then all do, before anybody asks what is next.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from strata.core.ids import check_int, check_mapping
from strata.core.mix import check_seed, subkey
from strata.data.giving import Giving
from strata.data.loader import Loader
from strata.errors import InvalidInput

if TYPE_CHECKING:
    from strata.data.workers import EndlessDataset

FORMAT = "strata-mix-1"


class _Mixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The state of a mix."""

    seed: int
    weights: list[float]
    given: list[int]
    loaders: list[dict[str, Any]]
    format: str = FORMAT


class Mix(Giving):
    """See the module. Safe to iterate by one thread at a time; its loaders are iterated by nobody else meanwhile.

    loaders: each with its weight; only how large weights are beside each other matters. All have batches of the same
        size, and are of the same rank. All are part of a job that goes back when somebody is lost, or none is.
    global_batch_size: that size.
    """

    def __init__(self, loaders: Mapping[Loader, float], global_batch_size: int, seed: int = 0) -> None:
        check_mapping(loaders, "loaders")
        if not all(isinstance(each, Loader) for each in loaders):
            raise InvalidInput("loaders must be a dict of a weight for each strata.data.Loader")
        self._loaders = [*loaders]
        self._weights = _shares([*loaders.values()])
        self._seed = check_seed(seed)
        _check_alike(self._loaders, check_int(global_batch_size, "global_batch_size", least=1))
        self._given = [0] * len(self._loaders)
        self._is_of_a_job = self._loaders[0].is_of_a_job
        super().__init__()

    @property
    def given(self) -> tuple[int, ...]:
        """How many batches of each loader were given out: of one that is part of a job, in that."""
        if self._is_of_a_job:
            return tuple(loader.epoch * len(loader) + loader.batch for loader in self._loaders)
        return tuple(self._given)

    @property
    def next(self) -> int:
        """The loader that the next batch is of, counted from 0."""
        return self._next(self.given)

    def state_dict(self) -> dict[str, Any]:
        """What was given out is consumed, and nothing else. The same on all ranks."""
        self._check_counted()
        states = [loader.state_dict() for loader in self._loaders]
        mixed = _Mixed(seed=self._seed, weights=self._weights, given=[*self.given], loaders=states)
        return msgspec.structs.asdict(mixed)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, at any number of ranks. Other weights or another seed are refused: to go on with those,
        load the states of the loaders, and mix them anew."""
        found = _mixed(state)
        for what, then, now in (("seed", found.seed, self._seed), ("weights", found.weights, self._weights)):
            if then != now:
                raise InvalidInput(f"a mix cannot go on with other {what} than it began with: {then} then, {now} now")
        before = [loader.state_dict() for loader in self._loaders]
        try:
            for loader, each in zip(self._loaders, found.loaders, strict=True):
                loader.load_state_dict(each)
        except InvalidInput:
            for loader, each in zip(self._loaders, before, strict=True):
                loader.load_state_dict(each)  # all or none
            raise
        self._given = [*found.given]
        self._moved()

    def __iter__(self) -> Iterator[Any]:
        """Batches without end. An error of a loader ends it: the batch that could not be made is the next one still."""
        moves = self._iterated()
        self._settle()
        under_way: dict[int, Iterator[Any]] = {}
        while self._moves == moves:
            number = self.next
            batch = self._batch_of(number, under_way)
            self._given[number] += 1
            self._gave()
            yield batch

    def _settle(self) -> None:
        """All loaders together, which are in the same order on all ranks: else one would wait for others here, and they
        for it there."""
        loaders = [loader for loader in self._loaders if loader.is_of_a_job]
        if any(loader.is_to_begin() for loader in loaders):
            for loader in loaders:
                loader.rejoin()
        for loader in loaders:
            loader.settle()
            if loader.carries_on:
                raise InvalidInput(
                    "the job carries on where others are lost, which a mix of its datasets cannot: what was worked on "
                    "of each is not known at the same step. Let the job go back to a checkpoint instead "
                    '(recovery="rollback"), or mix loaders without a dataset_id'
                )

    def _batch_of(self, number: int, under_way: dict[int, Iterator[Any]]) -> Any:
        """The loader's next one, of its next epoch if this one is through."""
        for _ in range(2):
            if number not in under_way:
                under_way[number] = self._loaders[number].rest()
            for batch in under_way[number]:
                return batch
            del under_way[number]
        raise InvalidInput(f"loader {number} of the mix gives no batches any more")

    def _next(self, given: Sequence[int]) -> int:
        """The loader that comes next, when so many were given out of each."""
        instants = [self._instant(number, count) for number, count in enumerate(given)]
        return instants.index(min(instants))

    def _instant(self, number: int, given: int) -> float:
        drawn: float = (subkey(self._seed, number, given) >> 11) / (1 << 53)
        return (given + drawn) / self._weights[number]

    # -- in the workers of a DataLoader ------------------------------------------------------------------------------

    def dataset(self) -> "EndlessDataset":
        """For `DataLoader(mix.dataset(), batch_size=None, num_workers=…)`, which is iterated with `over`."""
        from strata.data.workers import EndlessDataset

        if any(loader.is_of_a_job for loader in self._loaders):
            raise InvalidInput("a mix of loaders with a dataset_id has no part for workers: iterate the mix itself")
        for loader in self._loaders:
            loader.go_to_workers()
        self._share_out()
        return EndlessDataset(self)

    def batches_here(self) -> Iterator[Any]:
        """From where it stands, for somebody who gives them out."""
        self._asked()
        return self._from(self._where(), None, 1)

    def batches_of_worker(self, worker: int, workers: int) -> Iterator[Any]:
        """In a worker's copy of this mix: its batches of the iteration that begins now."""
        return self._from(self._begun_in_worker(), worker, workers)

    def _from(self, where: tuple[int, ...], worker: int | None, workers: int) -> Iterator[Any]:
        """One batch at a time: which of a loader's are this worker's is as irregular as the mix."""
        given, places = [*where[: len(self._loaders)]], [*where[len(self._loaders) :]]
        makers: dict[int, tuple[int, Callable[[int], Any]]] = {}
        for turn in count():
            number = self._next(given)
            given[number] += 1
            epoch, batch = places[2 * number : 2 * number + 2]
            if batch == len(self._loaders[number]):
                epoch, batch = epoch + 1, 0
            places[2 * number : 2 * number + 2] = epoch, batch + 1
            if turn % workers == (worker or 0):
                if number not in makers or makers[number][0] != epoch:
                    makers[number] = epoch, self._loaders[number].maker(epoch, worker, workers)
                yield makers[number][1](batch)

    @property
    def _name(self) -> str:
        return "mix"

    def _where(self) -> tuple[int, ...]:
        """What was given of each, and then the epoch and batch of each."""
        return (*self.given, *(place for loader in self._loaders for place in (loader.epoch, loader.batch)))

    def _count(self) -> None:
        number = self.next
        self._loaders[number].passed()
        self._given[number] += 1
        self._gave()

    def _at_end(self) -> None:
        raise InvalidInput("the DataLoader ended, and a mix has no end: does it get its batches from this mix?")


def _mixed(state: Mapping[str, Any]) -> _Mixed:
    try:
        found = msgspec.convert(dict(state), _Mixed)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidInput(f"this is no state of a mix: {error}") from error
    if found.format != FORMAT:
        raise InvalidInput(f"the state of the mix has format {found.format!r}, and this one knows {FORMAT!r}")
    if not len(found.weights) == len(found.given) == len(found.loaders) or min(found.given, default=0) < 0:
        raise InvalidInput("this is no state of a mix: it does not fit together")
    return found


def _shares(weights: list[Any]) -> list[float]:
    if not weights:
        raise InvalidInput("a mix needs at least one loader")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InvalidInput(f"a weight must be a number above 0, not {weight!r}: leave out what is not wanted")
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _check_alike(loaders: list[Loader], global_batch_size: int) -> None:
    for number, loader in enumerate(loaders):
        if loader.global_batch_size != global_batch_size:
            raise InvalidInput(
                f"loader {number} of the mix has batches of {loader.global_batch_size}, and the mix of "
                f"{global_batch_size}: each batch is of one loader, so make them with the same size"
            )
        if loader.share != loaders[0].share:
            raise InvalidInput(
                f"loader {number} of the mix is of rank {loader.share.position} of {loader.share.world}, and the first "
                f"of rank {loaders[0].share.position} of {loaders[0].share.world}"
            )
        if loader.is_of_a_job != loaders[0].is_of_a_job:
            raise InvalidInput(
                "some loaders of the mix are part of a job (dataset_id), and some are not: who joins would find only "
                "those of the job where the others are"
            )
        if not len(loader):
            raise InvalidInput(f"loader {number} of the mix has no batches: its dataset is empty")
