"""Batches of a dataset for a training loop: the same global batches at every world size, and exact resume.

    for batch in loader: …          {"image": array, "label": array}; goes on where it stopped, epoch after epoch
    loader.state_dict()             a few numbers, counted by batches that were given out: store it with the checkpoint

Runs of batches are put together ahead, by threads. What was put together and not given out counts for nothing: it is
put together again after a resume.

As part of a job (`dataset_id`), loaders begin where the coordinator says that all ranks go on from, and tell it what is
consumed; where they are is in every checkpoint that is saved meanwhile. See `attendance`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from strata.config import Config
from strata.core.events import Position as DataPosition
from strata.core.events import check_position
from strata.core.ids import check_choice
from strata.core.orders import WINDOW_SHARDS, ElasticOrder, ShardLayout, Tail
from strata.data.cache import CACHE_BYTES, Cache
from strata.data.cursor import Cursor
from strata.data.fingerprints import UNKNOWN, difference
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.making import Making, OnMissing
from strata.data.output import Finish, Output
from strata.data.position import Cut, Position, batch_after, beginning, order_at, through, told_apart
from strata.data.runs import Batch, Share
from strata.data.skipping import MissedByWorkers, OnDamage, Skipped
from strata.errors import InvalidInput
from strata.logs import get_logger

if TYPE_CHECKING:
    from strata.data.attendance import Attendance
    from strata.data.joining import Source
    from strata.data.workers import WorkerDataset
    from strata.session import Session

logger = get_logger("strata.data")

MEMORY_BYTES = 1 << 30
SHARD_SAMPLES = 10_000
"""Of a shard at most, by default."""


class Loader(Cursor):
    """See the module. Safe to iterate by one thread at a time.

    dataset: an index of it (`index_dataset`, `load_index`), or where it is, and in which `format`: then it is indexed
        first, which takes a look into each file. With `dataset_id`, by default where it is registered.
    global_batch_size: samples of a batch over all ranks; this one gets its share, in order.
    dataset_id: what it is registered as (`DatasetRegistry.register`), for a loader that is part of a job: how it is
        shuffled and cut into shards is registered, too. The first iteration waits until all ranks are there, and begins
        where all of them go on from: so load the checkpoint before. If the job is taken back, or its ranks change,
        StaleGeneration is raised instead of the next batch: iterate again. coordinator_url, job_id, rank, world_size:
        by default as the environment says. One that is part of no job is rank 0 of 1 unless it is told otherwise.
    report: how the coordinator's ledger learns what is consumed: "behind" the training, every second, or "each" batch
        before the next is given out, for jobs that carry on where others were lost.
    columns: those that are wanted; all if None.
    map: applied to each batch, before it is turned into what `output` says, by the threads that prepare batches.
    memory_bytes: for decoded blocks, of all workers of a DataLoader together. What is put together comes on top: three
        runs of about 8 MiB (24 MiB of large values), or of one batch.
    cache, cache_bytes: a folder where what is read from a remote storage is kept, for all processes of the machine, and
        how much of it. What was not used for longest goes first.
    on_damage: "skip" leaves samples out of their batches that cannot be read, which are then shorter, and files out of
        the index; `skipped` tells which. By default both are errors.
    streams, window_shards: how far samples are mixed; see docs/DATA.md. They are part of the order: a resume needs the
        same, and has them in its state.
    """

    def __init__(
        self,
        dataset: "Source | None" = None,
        global_batch_size: int = 0,
        *,
        dataset_id: str | None = None,
        coordinator_url: str | None = None,
        job_id: str | None = None,
        report: Literal["behind", "each"] = "behind",
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        epoch: int = 0,
        tail: Tail = "drop",
        shard_size: int | None = None,
        streams: int | None = None,
        window_shards: int = WINDOW_SHARDS,
        columns: Sequence[str] | None = None,
        output: Output = "numpy",
        map: Callable[[Batch], Batch] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        threads: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
        format: str = "",
        on_damage: OnDamage = "raise",
    ) -> None:
        self._is_told_each = check_report(report)
        self._attendance: Attendance | None = None
        self.dataset_id = dataset_id
        """Of a loader that is part of a job."""
        if dataset_id is not None:
            from strata.data.attendance import attend

            said = {"job_id": job_id, "rank": rank, "world_size": world_size}
            self._attendance = attend(dataset_id, coordinator_url, **said)
            self._attendance.close_with(self)
        with ExitStack() as unless_made:
            unless_made.callback(self._leave)
            self.index, cut = self._found(dataset, format, Cut(shuffle, seed, shard_size), on_damage)
            self.index.check_columns(columns)
            shard_size = shard_size_for(self.index) if cut.shard_size is None else cut.shard_size
            position = beginning(
                self.index.fingerprint,
                ShardLayout(self.index.rows, shard_size),
                global_batch_size,
                seed=0 if cut.seed is None else cut.seed,
                shuffle=cut.shuffle is not False,
                streams=streams,
                window_shards=window_shards,
                tail=tail,
                epoch=epoch,
            )
            if cache is not None:
                self.index = self.index.cached(Cache(cache, cache_bytes))
            if dataset_id is None and rank is None and world_size is None:
                _warn_of_launcher()
            self._share = Share.of(0 if rank is None else rank, 1 if world_size is None else world_size)
            self._making = Making(
                self.index,
                self._share,
                columns,
                Finish(output, map, self.index.schema),
                memory_bytes=memory_bytes,
                threads=min(4, os.cpu_count() or 1) if threads is None else threads,
                on_damage=on_damage,
            )
            unless_made.pop_all()
        self._missed: MissedByWorkers | None = None
        self._is_resumed = False
        super().__init__(position)
        if self._attendance is not None:
            self._attendance.reading = position.reading
            self._attendance.skips_damage = on_damage == "skip"

    def _found(self, dataset: "Source | None", format: str, cut: Cut, on_damage: OnDamage) -> tuple[DatasetIndex, Cut]:
        """The files, and how they are cut: as it was said, or as it is registered, with all of them."""
        if self._attendance is not None:
            return self._attendance.source(dataset, format, cut)
        if dataset is None:
            raise InvalidInput("say which dataset: where it is, an index of it, or the dataset_id of a registered one")
        if not isinstance(dataset, DatasetIndex | str | os.PathLike | Sequence):
            raise InvalidInput(f"dataset must be an index or a path, not {type(dataset).__name__}")
        if not isinstance(dataset, DatasetIndex):
            dataset = index_dataset(dataset, format, on_damage=on_damage)
        return dataset, cut

    def __getstate__(self) -> dict[str, Any]:
        """For a worker of a DataLoader, which has no part in the job."""
        return {**self.__dict__, "_attendance": None}

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def blocks_read(self) -> int:
        """More than there are if `memory_bytes` is too small for the order, or after more than one epoch."""
        return self._making.held().read_count

    @property
    def skipped(self) -> Skipped:
        """What was left out, if `on_damage` is "skip"."""
        blocks = self._making.skipped()
        by_workers = 0 if self._missed is None else self._missed.samples
        return Skipped(by_workers + sum(each.left_out for each in blocks), blocks, self.index.skipped)

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self._order.batches

    @property
    def global_batch_size(self) -> int:
        return self._position.global_batch_size

    @property
    def is_of_a_job(self) -> bool:
        """Whether a coordinator is told what it gives out (`dataset_id`)."""
        return self._attendance is not None

    @property
    def session(self) -> "Session | None":
        """This process in its job, if the loader is part of one."""
        return None if self._attendance is None else self._attendance.session

    @property
    def share(self) -> Share:
        """Which rank's part of each batch it gives. Setting it changes all batches from then on, also in workers that
        were started before."""
        return self._share

    @share.setter
    def share(self, share: Share) -> None:
        self._share = share
        self._making.take(share)
        self._tell()

    def samples(self, batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of this rank's samples in a batch of the epoch that it is in."""
        return self._order.places(batch, *self._share)

    def close(self) -> None:
        """Lets go of memory and threads. It gives no batches any more, and `state_dict` still says where it stands."""
        self._making.close()
        self._leave()

    def _leave(self) -> None:
        attendance, self._attendance = self._attendance, None
        if attendance is not None:
            attendance.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- iterating ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch that it is in. When that is at its end, the next is. What `map` raises, or an error in
        the data, ends it: the batch that could not be made is the next one still."""
        self._starting()
        yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """As iterating, for who has settled it: in a job it does not begin again by itself."""
        moves, epoch = self._iterated(), self.epoch
        numbers = range(self.batch, len(self))
        for number, batch in self._making.batches(self._order, numbers, on_missing=self._lacks):
            self._give(epoch, number + 1)
            yield batch
            if self._moves != moves:
                return
            self._worked_on()
        self._go_to(self._position.at(epoch + 1, 0))
        self._worked_on()

    def _change(self, then: str) -> str:
        found = difference(then, self.index)
        return UNKNOWN if found is None else found.how

    # -- in a checkpoint ---------------------------------------------------------------------------------------------

    def data_position(self) -> DataPosition:
        """Where it stands, as a checkpoint has it beside the state: see `CheckpointManager.reads`. The end of an epoch
        is the beginning of the next."""
        epoch, consumed = self._reached()
        return DataPosition(0, epoch, [0, consumed] if consumed else [], self._position.reading)

    def go_on_from(self, where: DataPosition) -> None:
        """As `load_state_dict`, from there."""
        check_position(where, "where")
        if where.consumed and where.reading != self._position.reading:
            raise InvalidInput(f"epoch {where.epoch} {told_apart(where.reading, self._position.reading)}")
        self._go_to(self._position.at(where.epoch, 0))
        self._go_to(self._position.at(where.epoch, batch_after(self._order, sum(where.consumed[1::2]))))

    def _reached(self) -> tuple[int, int]:
        is_over = self.batch == len(self)
        return (self.epoch + 1, 0) if is_over else (self.epoch, through(self._order, self.batch))

    # -- as part of a job --------------------------------------------------------------------------------------------

    def goes_back_if(self, has_changed: Callable[[], bool]) -> None:
        """Whether the world is another than whoever iterates has recovered to: then no other ranks are waited for, and
        StaleGeneration is raised, since those wait for this one to go back with them."""
        if self._attendance is not None:
            self._attendance.has_changed = has_changed

    def is_to_begin(self) -> bool:
        """Whether to settle it means to begin where all ranks do: for the first time, or again."""
        if self._attendance is None:
            return False
        self._attendance.look()
        return self._attendance.is_fresh

    @property
    def carries_on(self) -> bool:
        """Whether its job goes on where others are lost: known once it has settled."""
        return self._attendance is not None and self._attendance.carries_on

    def settle(self) -> None:
        """Go where all ranks of the job go on from, once they are all there. To iterate does that by itself."""
        self._starting()

    def set_epoch(self, epoch: int) -> None:
        if self._attendance is not None and (epoch, 0) != (self.epoch, self.batch):
            raise InvalidInput(
                f"the job is at batch {self.batch} of epoch {self.epoch}, and all its ranks go on from there: to read "
                "another epoch, go back to a checkpoint of it"
            )
        super().set_epoch(epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._is_resumed = True

    def finish(self) -> None:
        """What it gave out last was worked on, and nothing more will be asked for: the ledger learns that by `close`,
        which it else does when the next batch is asked for."""
        if self._attendance is not None and not self._attendance.is_fresh:
            if self.batch == len(self):
                self._go_to(self._position.at(self.epoch + 1, 0))
            self._attendance.consumed(self.epoch, through(self._order, self.batch))

    def rejoin(self) -> None:
        """In a job that carries on where others are lost, after a step that was not completed: the next iteration
        begins where the ledger says that all ranks are. All of them have to do that."""
        if self._attendance is None:
            raise InvalidInput("this loader is part of no job: it goes on where it stopped, or load_state_dict says")
        self._attendance.forget()

    def _starting(self) -> None:
        attendance = self._attendance
        if attendance is None:
            return
        attendance.look()
        if not attendance.is_fresh and not self._is_resumed:
            return
        if attendance.is_fresh:
            self.share = attendance.begin(through(self._order, len(self))).share
        epoch, consumed = attendance.reached
        batch = batch_after(self._order, consumed)
        there = (epoch, batch) if batch < len(self) else (epoch + 1, 0)
        here = self.epoch, self.batch
        if not self._is_resumed:
            self._go_to(self._position.at(*there))
        elif here < there:
            raise InvalidInput(
                f"the loader's state says batch {here[1]} of epoch {here[0]}, and the job is at batch {there[1]} of "
                f"epoch {there[0]}: load the checkpoint that all ranks go on from (CheckpointManager.load), and take "
                "the loader's state from there, or none"
            )
        self._is_resumed = False
        self._say_where()
        self._worked_on()

    def _worked_on(self) -> None:
        attendance = self._attendance
        if attendance is not None:
            attendance.consumed(self.epoch, through(self._order, self.batch), at_once=self._is_told_each)
            attendance.check()

    # -- in the workers of a DataLoader ------------------------------------------------------------------------------

    def dataset(self) -> "WorkerDataset":
        """For `DataLoader(loader.dataset(), batch_size=None, num_workers=…)`, which is iterated with `over`. Spawned
        workers need a `map` that can be pickled."""
        from strata.data.workers import WorkerDataset

        self.go_to_workers()
        self._share_out()
        return WorkerDataset(self)

    def go_to_workers(self) -> None:
        """Copies of it will be made, which count together what they leave out."""
        if self._missed is None:
            self._missed = MissedByWorkers()

    def _missing_in(self, worker: int | None, order: ElasticOrder) -> OnMissing | None:
        """What a batch lacks that somebody else gives out: a worker, or this process where there are no workers."""
        told = self._missed
        if told is None:
            return None

        def lacks(batch: int, samples: int) -> None:
            if worker is not None:
                told.add(worker, samples)
            told.put(batch, self._first_missed(order, batch, samples))

        return lacks

    def _first_missed(self, order: ElasticOrder, batch: int, samples: int) -> int:
        """How many of the samples that a batch lacks are not among those that only fill it up."""
        first = order.repeated_from(batch) - self._share.position * order.batch_size(batch) // self._share.world
        repeated = order.places(batch, *self._share)[max(0, first) :]
        return samples - self._making.count_skipped(repeated) if len(repeated) else samples

    def batches_here(self) -> Iterator[Any]:
        """The rest of the epoch, for somebody who gives it out."""
        self._asked()
        return self._from(self._position, None, 1)

    def batches_of_worker(self, worker: int, workers: int) -> Iterator[Any]:
        """In a worker's copy of this loader: its batches of the iteration that begins now."""
        epoch, batch, *share = self._begun_in_worker()
        self._making.take(Share(*share))
        return self._from(self._position.at(epoch, batch), worker, workers)

    def _from(self, where: Position, worker: int | None, workers: int) -> Iterator[Any]:
        order = order_at(where)
        numbers = range(min(where.batch + (worker or 0), order.batches), order.batches, workers)
        return (batch for _, batch in self._making.batches(order, numbers, workers, self._missing_in(worker, order)))

    def maker(self, epoch: int, worker: int | None = None, among: int = 1) -> Callable[[int], Any]:
        """Makes any batch of an epoch by itself, for who gives them out: a worker, one of so many."""
        order = order_at(self._position.at(epoch, 0))
        return self._making.maker(order, among, self._missing_in(worker, order))

    def passed(self) -> None:
        """Its next batch was given out by somebody else; after the last of an epoch, the first of the next."""
        if self.batch == len(self):
            self._go_to(self._position.at(self.epoch + 1, 0))
        self._count()

    def _where(self) -> tuple[int, ...]:
        """Ranks may come and go while workers stay: what is this one's of each batch goes along."""
        return *super()._where(), *self._share

    def _count(self) -> None:
        missed = 0 if self._missed is None else self._missed.take(self.batch)
        self._left_out(self.batch, missed)
        super()._count()

    def _lacks(self, batch: int, samples: int) -> None:
        """So many damaged samples of the batch that this process has made, and gives out now."""
        self._left_out(batch, self._first_missed(self._order, batch, samples))

    def _left_out(self, batch: int, samples: int) -> None:
        if self._attendance is not None and samples:
            self._attendance.left_out(self.epoch, through(self._order, batch + 1), samples)

    def _give(self, epoch: int, given: int) -> None:
        super()._give(epoch, given)
        self._say_where()

    def _go_to(self, position: Position) -> None:
        super()._go_to(position)
        self._say_where()

    def _say_where(self) -> None:
        """What a checkpoint has that is saved now."""
        if self._attendance is not None and not self._attendance.is_fresh:
            self._attendance.at(*self._reached())


def _warn_of_launcher() -> None:
    """What is part of no job takes no place from the environment: a launcher starts evaluations and sweeps, too."""
    launched = Config({}, os.environ)
    if (launched["world_size"] or 1) > 1:
        logger.warning(
            "the launcher says that this is rank %s of %s, and this loader gives each of them all samples: give it "
            "rank and world_size, or world_size=1 if that is meant",
            launched["rank"],
            launched["world_size"],
        )


def check_report(report: str) -> bool:
    """Whether each batch is told before the next is given out."""
    check_choice(report, "report", ("behind", "each"))
    return report == "each"


def shard_size_for(index: DatasetIndex) -> int:
    """About a block, and no more than many samples: those of a shard are read at about the same time."""
    return max(1, min(SHARD_SAMPLES, index.rows // max(1, index.blocks)))
