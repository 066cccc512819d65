"""`DatasetRegistry`: what datasets a job has, which samples of them are whose, and which epoch they are in.

The coordinator decides all of it; here it is asked, and its answers are told in files where that is wanted. Each call
has a blocking form and one to be awaited. Looking into files, which may take long, is done in the caller's own thread,
or in one beside the loop.
"""

import asyncio
import os
import socket
from typing import Any, Self, TypeAlias

import msgspec
import numpy as np

from strata import background
from strata.config import Config
from strata.core.events import DatasetRegisterRequested
from strata.core.ids import check_bool, check_id, check_int, check_name, check_seconds, check_text
from strata.core.orders import ShardLayout
from strata.data.counting import Counted, counted_files
from strata.data.indexing import Progress
from strata.data.paths import Paths, written
from strata.data.registered import Cut, FilesKey, RegisteredDataset, Registration, Share, registered
from strata.errors import Conflict, InvalidInput, NotFound
from strata.sharding import ShardAssignment, Strategy, assignments
from strata.wire.asking import Asker

TIMEOUT_SECONDS = 30.0
MAX_TIMEOUT_SECONDS = 1e9
MAX_RANK = 2**31 - 1


# Inside the class, `list` is its method.
_Datasets: TypeAlias = list[RegisteredDataset]
_Assignments: TypeAlias = list[ShardAssignment]
_Paths: TypeAlias = list[str]


class DatasetRegistry:
    """The datasets of a job.

    coordinator_url: where the coordinator is; COORDINATOR_URL if nothing is said, else port 50051 of this machine.
    job_id: by default STRATA_JOB_ID, else `default`. timeout: how many seconds a call may take; for so long it waits
    for a coordinator that does not answer, such as one that is being restarted.
    """

    def __init__(
        self, coordinator_url: str | None = None, *, job_id: str | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        check_seconds(timeout, "timeout", most=MAX_TIMEOUT_SECONDS)
        if coordinator_url is not None:
            check_text(coordinator_url, "coordinator_url")
        if job_id is not None:
            check_id(job_id, "job_id")
        config = Config({"coordinator_url": coordinator_url or None, "job_id": job_id}, os.environ)
        self._asker = Asker(config, timeout)
        self._said = config["coordinator_url"], self._asker.job, timeout
        self._asks = _who_asks(config)
        self._epochs: dict[str, int] = {}
        """The epoch that each dataset was in when this registry last heard of it."""
        self._files: dict[FilesKey, Counted] = {}
        """What was counted."""

    def __repr__(self) -> str:
        return f"DatasetRegistry({self._asker.where!r}, job_id={self._asker.job!r})"

    def __getstate__(self) -> Any:
        return self._said, self._epochs

    def __setstate__(self, state: Any) -> None:
        """In another process, which makes connections of its own, and has its own token."""
        (url, job, timeout), epochs = state
        DatasetRegistry.__init__(self, url, job_id=job, timeout=timeout)
        self._epochs = epochs

    # -- registering -------------------------------------------------------------------------------------------------

    def register(  # noqa: PLR0917  the contract's own order
        self,
        dataset_id: str,
        path: Paths,
        format: str,
        total_samples: int | None = None,
        shard_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        *,
        strategy: Strategy = "slots",
        order: str = "elastic",
        replace: bool = False,
        replaces_version: int | None = None,
        progress: Progress | None = None,
    ) -> Registration:
        """Make a dataset known to the job. Again with equal values changes nothing; with others it is a Conflict.

        path: a file, a folder, a pattern, or a list of those, as the workers see it. total_samples: if it is given,
        nothing need be there on this machine; else the samples are counted in the files, and `progress` is called with
        the files done, of how many, and the samples so far. shard_size: by default about a thousandth of the samples,
        but at most 10,000. strategy: "slots", or "ring" for ownership that follows from ranks alone. order:
        "elastic" or "affinity", for the loader. replace: whatever is registered is replaced if it differs, by a new
        version at epoch 0; replaces_version: only if it is this version.
        """
        cut = Cut(shard_size, shuffle, seed, strategy, order)
        asked, files = self._prepared(dataset_id, path, format, total_samples, cut, replaces_version, progress)
        return background.run(self._register(asked, files, replace))

    async def register_async(  # noqa: PLR0917  as above
        self,
        dataset_id: str,
        path: Paths,
        format: str,
        total_samples: int | None = None,
        shard_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        *,
        strategy: Strategy = "slots",
        order: str = "elastic",
        replace: bool = False,
        replaces_version: int | None = None,
        progress: Progress | None = None,
    ) -> Registration:
        cut = Cut(shard_size, shuffle, seed, strategy, order)
        said = (dataset_id, path, format, total_samples, cut, replaces_version, progress)
        asked, files = await asyncio.to_thread(self._prepared, *said)
        return await self._register(asked, files, replace)

    def _prepared(  # noqa: PLR0917  what a caller said, in its order
        self,
        dataset_id: str,
        path: Paths,
        format: str,
        total_samples: int | None,
        cut: Cut,
        replaces_version: int | None,
        progress: Progress | None,
    ) -> tuple[DatasetRegisterRequested, Counted | None]:
        """What to ask for, checked, and the files if they were counted for it."""
        where, files = written(path), None
        check_name(format, "format")
        if total_samples is None:
            cut.event(self._asker.job, dataset_id, where, format, 1)  # what is wrong is told before anything is counted
            files = counted_files(where, format, progress, "give total_samples, or register from where the files are")
            total_samples = files.total_samples
            if not total_samples:
                raise InvalidInput(f"dataset {dataset_id!r} has no samples: the files in {where} are empty")
        if replaces_version is not None:
            check_int(replaces_version, "replaces_version", least=1)
        asked = cut.event(self._asker.job, dataset_id, where, format, total_samples)
        if files is not None:
            asked = msgspec.structs.replace(asked, fingerprint=files.fingerprint, columns=files.columns)
        return msgspec.structs.replace(asked, replaces=replaces_version), files

    async def _register(self, asked: DatasetRegisterRequested, files: Counted | None, replace: bool) -> Registration:
        if check_bool(replace, "replace") and asked.replaces is None:
            known = await self._known(asked.dataset)
            asked = msgspec.structs.replace(asked, replaces=None if known is None else known.version)
        try:
            answer = await self._asker.call(
                "RegisterDataset",
                dataset_id=asked.dataset,
                total_samples=asked.total_samples,
                shard_size=asked.shard_size,
                shuffle=asked.shuffle,
                seed=asked.seed,
                path=asked.path,
                format=asked.format,
                strategy=asked.strategy,
                order=asked.order,
                replaces_version=asked.replaces,
                fingerprint=asked.fingerprint,
                columns=asked.columns,
            )
        except Conflict as error:
            raise Conflict(f"{error} (replace=True, or replaces_version, says so)") from None
        if files is not None:
            self._files[answer.version, asked.path, asked.format] = files
        self._epochs[asked.dataset] = answer.epoch
        return Registration(asked.dataset, answer.version, answer.epoch, asked.total_samples)

    def unregister(self, dataset_id: str, version: int | None = None) -> None:
        """Take a dataset out of the job; with `version`, only if it is that one. Again changes nothing."""
        background.run(self.unregister_async(dataset_id, version))

    async def unregister_async(self, dataset_id: str, version: int | None = None) -> None:
        check_id(dataset_id, "dataset_id")
        if version is not None:
            check_int(version, "version", least=1)
        await self._asker.call("UnregisterDataset", dataset_id=dataset_id, version=version)
        self._epochs.pop(dataset_id, None)

    def list(self) -> _Datasets:
        """The datasets of the job, in the order of their ids. A job that nobody has begun yet has none."""
        return background.run(self.list_async())

    async def list_async(self) -> _Datasets:
        try:
            answer = await self._asker.call("ListDatasets")
        except NotFound:
            return []
        return [registered(each) for each in answer.datasets]

    async def _known(self, dataset_id: str) -> RegisteredDataset | None:
        return next((each for each in await self.list_async() if each.dataset_id == dataset_id), None)

    # -- whose is what -----------------------------------------------------------------------------------------------

    def get_shard(self, dataset_id: str, worker_rank: int, epoch: int | None = None) -> _Paths:
        """The files of a rank in an epoch (None: the current one), in the order of its shards.

        To be called where the files are: which shards a file holds is seen from how many samples each has, which is
        counted the first time. A file that would belong to two workers is Refused: `strata.data.Loader` reads such a
        dataset, since it gives out samples and not files.
        """
        return self._whole_files(background.run(self._share(dataset_id, worker_rank, epoch)))

    async def get_shard_async(self, dataset_id: str, worker_rank: int, epoch: int | None = None) -> _Paths:
        return await asyncio.to_thread(self._whole_files, await self._share(dataset_id, worker_rank, epoch))

    def _whole_files(self, share: Share) -> _Paths:
        return self._counted(share).files.whole(share.shards, share.layout, f"rank {share.rank}'s")

    def get_assignments(
        self, dataset_id: str, worker_rank: int, epoch: int | None = None, *, files: bool = False
    ) -> _Assignments:
        """The shards of a rank in an epoch (None: the current one), in the order in which they are to be read.

        Their `file_paths` are those that hold samples of the shard, if this registry has counted them; with `files` it
        does so now, if it has not.
        """
        return self._assignments(background.run(self._share(dataset_id, worker_rank, epoch)), files)

    async def get_assignments_async(
        self, dataset_id: str, worker_rank: int, epoch: int | None = None, *, files: bool = False
    ) -> _Assignments:
        return await asyncio.to_thread(self._assignments, await self._share(dataset_id, worker_rank, epoch), files)

    def _assignments(self, share: Share, files: bool) -> _Assignments:
        counted = self._counted(share) if check_bool(files, "files") else self._files.get(share.key)
        held = None if counted is None else counted.files.of_each(share.shards, share.layout)
        return assignments(share.dataset_id, share.layout, share.epoch, share.shards, held)

    async def _share(self, dataset_id: str, worker_rank: int, epoch: int | None) -> Share:
        check_id(dataset_id, "dataset_id")
        check_int(worker_rank, "worker_rank", most=MAX_RANK)
        if epoch is not None:
            check_int(epoch, "epoch")
        answer = await self._asker.call("GetShards", dataset_id=dataset_id, rank=worker_rank, epoch=epoch)
        if epoch is None:
            self._epochs[dataset_id] = answer.epoch
        return Share(
            dataset_id,
            answer.version,
            answer.epoch,
            worker_rank,
            answer.path,
            answer.format,
            ShardLayout(answer.total_samples, answer.shard_size),
            np.array(answer.shard_ids, np.int64),
            answer.fingerprint,
            answer.columns,
        )

    def _counted(self, share: Share) -> Counted:
        found = self._files.get(share.key)
        if found is None:
            otherwise = "ask where the files are, or take get_assignments, which can do without them"
            found = counted_files(share.path, share.format, None, otherwise)
        found.check(share)
        self._files[share.key] = found
        return found

    # -- epochs ------------------------------------------------------------------------------------------------------

    def advance_epoch(self, dataset_id: str, from_epoch: int | None = None) -> int:
        """Begin the next epoch, once, however many workers ask; answers the epoch that the dataset is then in.

        from_epoch: the one that is over. None: the one that the dataset was in when this registry last heard of it, by
        `register`, by `advance_epoch` or by asking for the current epoch's shards.
        """
        return background.run(self.advance_epoch_async(dataset_id, from_epoch))

    async def advance_epoch_async(self, dataset_id: str, from_epoch: int | None = None) -> int:
        check_id(dataset_id, "dataset_id")
        over = await self._heard_of(dataset_id) if from_epoch is None else check_int(from_epoch, "from_epoch")
        answer = await self._asker.call("AdvanceEpoch", dataset_id=dataset_id, from_epoch=over, asked_by=self._asks)
        self._epochs[dataset_id] = answer.epoch
        return int(answer.epoch)

    async def _heard_of(self, dataset_id: str) -> int:
        epoch = self._epochs.get(dataset_id)
        if epoch is not None:
            return epoch
        known = await self._known(dataset_id)
        if known is None:
            raise NotFound(f"no dataset {dataset_id!r} in job {self._asker.job!r}: register it first")
        return known.epoch

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the connection. Datasets stay registered."""
        background.run_while_alive(self._asker.close)

    async def close_async(self) -> None:
        await self._asker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()


def _who_asks(config: Config) -> str:
    """For people who read why an epoch began."""
    if config["worker_id"]:
        return str(config["worker_id"])
    host = socket.gethostname()
    return f"a process on {host}" if config["rank"] is None else f"rank {config['rank']} on {host}"
