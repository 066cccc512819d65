"""A worker's own batches of a dataset in the affinity order: it reads the shards that it owns, so that caches stay
warm, and what others leave behind comes to it in the middle of an epoch.

    while loader.epoch < epochs:
        for batch in loader: …      until the epoch is over for everybody; then the next one's turn comes

Who reads what is the coordinator's to say, and what is consumed stands in its ledger. A batch counts as consumed when
the next one is asked for, or the loop is left: then it is reported, and never before. So a process that dies takes the
batch in its hands with it, and whatever it had not reported: the others read that again. Nothing else is read twice.

Workers do not take the same number of batches: shards are shared out whole, so workers differ by a shard, and whoever
outlives another reads more.

With a `tail` they do, for ranks that meet in every step, in a job that rolls back: the ends are evened out by sample.
There the world is fixed from one recovery point to the next, and so is each rank's share, which follows from who was
there at the point, whose which shard was, and what was consumed: the coordinator tells a rank its own, whenever it asks
(`strata.core.levels`), and nobody waits for anybody. What was lent is in checkpoints as all that was given out is, and
what is left at the next point is shared out anew.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal, Self

import msgspec

from strata import background
from strata.core.events import Position
from strata.core.ids import check_bool, check_choice, check_id, check_int, check_seconds
from strata.core.permutation import MAX_SIZE
from strata.core.ranges import RangeSet
from strata.data.cache import CACHE_BYTES, Cache
from strata.data.epochs import Epochs
from strata.data.grants import Grants
from strata.data.joining import Source, files_of, joined, registered_in
from strata.data.keeper import Keeper
from strata.data.ledger import read_ledger
from strata.data.levelled import Levelled, steps_of
from strata.data.loader import MEMORY_BYTES
from strata.data.making import Making
from strata.data.output import Finish, Output, check_output
from strata.data.ownbatches import Stretches
from strata.data.runs import Batch, Share
from strata.errors import InvalidInput, Refused
from strata.session import Session, leave, who_joins

FORMAT = "strata-affinity-1"
WAIT_SECONDS = 600.0
REPORT_SECONDS = 1.0


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one worker has given out of an epoch: flat ranges of its places."""

    dataset_id: str
    version: int
    epoch: int
    consumed: list[int]
    format: str = FORMAT


class AffinityLoader:
    """See the module. Safe to iterate by one thread at a time.

    dataset_id: as it is registered in the job, with order="affinity".
    batch_size: samples of a batch of this worker. The last ones of its shards may be a smaller batch.
    coordinator_url, job_id, worker_id, rank, world_size: as everywhere; without a rank, whoever joins is in the job.
        A checkpoint manager of this process that is told the same shares the session.
    tail: "short": for ranks that meet in every step. All take the same number of them; of the last each has the same
        number of samples to one, which may be none. For a job that rolls back. If a rank is lost, nobody reads for it:
        all go back to the latest checkpoint. None: shards are read whole, and numbers of batches differ.
    carry_on: configures the job to go on without those that it loses, and with those who join; what else can be
        configured of it is then as by default. Without, it is as it was configured: by default, whoever joins takes
        everybody back to the latest checkpoint.
    dataset: an index, or where the files are for this worker; by default where they are registered to be.
    columns, output, map, memory_bytes, threads, cache, cache_bytes: as for `Loader`.
    report_seconds: how often what was consumed is reported, at most. A process that dies has so much read again.
    wait_seconds: how long a worker that has nothing left waits for others of which none gets on, or for the
        coordinator when it has nothing to read.
    """

    def __init__(
        self,
        dataset_id: str,
        batch_size: int,
        *,
        coordinator_url: str | None = None,
        job_id: str | None = None,
        worker_id: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Literal["short"] | None = None,
        carry_on: bool = False,
        dataset: Source | None = None,
        columns: Sequence[str] | None = None,
        output: Output = "numpy",
        map: Callable[[Batch], Batch] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        threads: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        report_seconds: float = REPORT_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._batch_size = check_int(batch_size, "batch_size", least=1, most=MAX_SIZE)
        check_bool(carry_on, "carry_on")
        _check_tail(tail, carry_on)
        check_output(output)
        for seconds, what in ((report_seconds, "report_seconds"), (wait_seconds, "wait_seconds")):
            check_seconds(seconds, what)
        self._process = os.getpid()
        said = {"job_id": job_id, "worker_id": worker_id, "rank": rank, "world_size": world_size}
        check_id(dataset_id, "dataset_id")
        self.session = joined(coordinator_url, who_joins, **said)
        """This process in its job."""
        try:
            if carry_on:
                background.run(self.session.call("ConfigureJob", recovery="carry_on"))
            self.dataset = registered_in(self.session, dataset_id, "affinity")
            index = files_of(self.dataset, dataset)
            index.check_columns(columns)
            self.index = index if cache is None else index.cached(Cache(cache, cache_bytes))
            order = self.dataset.layout, self.dataset.seed, self.dataset.shuffle
            grants = Grants(*order) if tail is None else Levelled(*order, batch_size)
            self._keeper = Keeper(self.session, dataset_id, grants, report_seconds)
            self._epochs = Epochs(self._keeper, self.session, self.dataset, wait_seconds)
            self._making = Making(
                self.index,
                Share(0, 1),
                columns,
                Finish(output, map, self.index.schema),
                memory_bytes=memory_bytes,
                threads=min(4, os.cpu_count() or 1) if threads is None else threads,
            )
            self.session.reads(dataset_id, self._epochs.position)
        except BaseException:
            leave(self.session)
            raise
        self._loaded: State | None = None
        self._is_open = True
        # One that is dropped counts no batch: others may read again what was in hand.
        leaving, forgetting = (
            partial(_leave, self.session, self._keeper),
            partial(self.session.reads, dataset_id, None),
        )
        self._dropping = background.when_dropped(self, leaving, at_once=forgetting)
        self._keeper.start()

    @property
    def epoch(self) -> int:
        """The one that the next batch is of. Each has its turn, also for a worker to which nothing of it fell. The
        coordinator is asked the first time."""
        return self._epochs.epoch

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Of each rank, at the number of ranks that there is now. The coordinator is asked the first time."""
        grants = self._keeper.grants
        if not isinstance(grants, Levelled):
            raise InvalidInput(
                'workers that read whole shards differ in their steps: make the loader with tail="short"'
            )
        assert self.epoch >= 0, "who knows the epoch has heard how many ranks there are"
        return steps_of(self.dataset.total_samples, grants.ranks, self._batch_size)

    # -- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """What is this worker's of the rest of the epoch; ends when the epoch is over for everybody. What `map` raises,
        or an error in the data, ends it: the batch that could not be made is the next one still."""
        self._check_open()
        turn = self._epochs.begin()
        self._check_loaded()
        try:
            while (left := self._epochs.left(turn)) is not None:
                reading = Stretches(left.order, left.pieces, self._batch_size, left.steps)
                # What is prepared ahead is dropped as soon as something else is to be given out.
                with closing(self._making.batches(reading, range(reading.batches))) as batches:
                    for number, batch in batches:
                        if not self._epochs.give(turn, left, reading.pieces(number)):
                            break
                        yield batch
                        self._epochs.consume(turn)
        finally:
            self._epochs.consume(turn)

    # -- where it stands ---------------------------------------------------------------------------------------------

    def data_position(self) -> tuple[str, int, int, list[int]]:
        """The dataset, its version, the epoch, and the places of it that this worker has given out, as flat ranges.
        From any thread, at any time."""
        where = self._epochs.position() or Position(self.dataset.version, self.dataset.epoch, [])
        return self.dataset.dataset_id, where.version, where.epoch, where.consumed

    def state_dict(self) -> dict[str, Any]:
        """What this worker has given out. Going on is not by this alone: what all workers have consumed is in the
        coordinator's ledger, which a checkpoint takes back with the model."""
        dataset_id, version, epoch, consumed = self.data_position()
        return msgspec.structs.asdict(State(dataset_id=dataset_id, version=version, epoch=epoch, consumed=consumed))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The model is that of a checkpoint: what was given out here so far is no part of it. Goes on, at any number of
        workers, from the coordinator's ledger, and sees to it that it has what is in this state."""
        try:
            found = msgspec.convert(dict(state), State)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise InvalidInput(f"this is no state of a loader in the affinity order: {error}") from error
        if (found.format, found.dataset_id) != (FORMAT, self.dataset.dataset_id):
            raise InvalidInput(
                f"this is the state of dataset {found.dataset_id!r} (format {found.format!r}), and the loader is of "
                f"{self.dataset.dataset_id!r} ({FORMAT!r})"
            )
        RangeSet.from_flat(found.consumed)
        self._loaded = found
        self._epochs.interrupt()

    def _check_loaded(self) -> None:
        """The data has to be where the model is. If the ledger was taken back further, samples would be read again that
        are part of the model; if it was not taken back at all, those of this process would be missing. That it is ahead
        by what others read is right where they carried on."""
        loaded = self._loaded
        if loaded is None or loaded.version != self.dataset.version:
            return
        given = self._epochs.given_since_point()
        if given is not None and (
            given.epoch > loaded.epoch or _lacking(RangeSet.from_flat(loaded.consumed), given.consumed)
        ):
            raise Refused(
                f"the model goes back to an earlier checkpoint, and the job did not: what this worker gave out of "
                f"dataset {loaded.dataset_id!r} since then would be missing. All ranks go back together: load the "
                "checkpoint of the recovery point when a rank was lost, roll back by `strata ckpt rollback`, or start "
                "them again"
            )
        ledger = background.run(read_ledger(self.session, self.dataset.dataset_id))
        missing, epoch = _lacking(ledger.consumed, loaded.consumed), ledger.dataset.epoch
        if epoch < loaded.epoch or (epoch == loaded.epoch and missing):
            raise Refused(
                f"the model has seen epoch {loaded.epoch} of dataset {loaded.dataset_id!r} up to its checkpoint, and "
                f"the coordinator's ledger is in epoch {epoch} and lacks {missing:,} samples of that: they would be "
                "read again. Load the checkpoint through the coordinator, which takes the ledger back with it; to read "
                "them again all the same, do not load the loader's state"
            )
        self._loaded = None

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The batch in hand counts, what is consumed is reported, and the worker leaves the job, unless others of its
        process are in it. Its shards go to the others."""
        if not self._is_open or self._process != os.getpid():
            return
        self._is_open = False
        self._dropping.detach()
        self.session.reads(self.dataset.dataset_id, None)
        self._epochs.finish()
        _leave(self.session, self._keeper)
        self._making.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInput("this loader is closed: make another")
        if self._process != os.getpid():
            raise InvalidInput(
                "this loader was made in another process, which is the worker in the job: its children are not"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _leave(session: Session, keeper: Keeper) -> None:
    background.run_while_alive(keeper.close)
    leave(session)


def _check_tail(tail: str | None, carry_on: bool) -> None:
    if tail is None:  # numbers of batches may differ
        return
    check_choice(tail, "tail", ("short",))
    if carry_on:
        raise InvalidInput(
            "where a job carries on without those that it loses, whoever is left reads more: numbers of batches "
            "differ, and no tail can be chosen"
        )


def _lacking(there: RangeSet, flat: Sequence[int]) -> int:
    """How many places of these ranges are not there."""
    return sum(end - start - there.overlap(start, end) for start, end in zip(flat[::2], flat[1::2], strict=True))
