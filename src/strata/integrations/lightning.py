"""`StrataCheckpointIO`: Lightning's checkpoints are checkpoints of a Strata job, written while training goes on.

    Trainer(plugins=[StrataCheckpointIO("s3://bucket/runs", job_id="gpt")], callbacks=[ModelCheckpoint("folder")])

The law: what lies at a path that Lightning names is a small file, the ticket, which is put there when the checkpoint it
names is committed, and not before. What Lightning removes is removed when the save before that is committed, and stays
if it failed. No pickle is stored, and none is loaded. Needs `lightning` or `pytorch-lightning`, of whichever version 2.
"""

import argparse
import io
import os
import re
import shutil
import sys
import threading
import time
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.manager import CheckpointManager, CheckpointReader, Where
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.core.ids import DEFAULT_JOB
from strata.errors import InvalidInput, NotFound, ObjectNotFound, Refused, StorageError, StrataError
from strata.extras import needs
from strata.logs import get_logger
from strata.storage import BlockingStorage, open_storage

with needs("torch", module="strata.integrations.lightning", extra="lightning"):
    import torch

    from strata.torch.objects import without_code

logger = get_logger("strata.integrations.lightning")

PACKAGES = {"lightning": "lightning.fabric", "lightning_fabric": "lightning_fabric"}
"""Lightning comes under two names, whose classes are not the same."""
LATE_SECONDS = 60.0
"""So long other ranks wait for a ticket that rank 0 has yet to put."""
LATEST = "latest"
TICKET_BYTES = 4096
_STEP = re.compile(r"(?:step_)?(\d+)")

Path = str | os.PathLike[str]
T = TypeVar("T")


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """What lies at a path: which checkpoint it stands for. `url` is for people."""

    strata: str = "checkpoint"
    url: str
    job: str
    step: int
    term: int
    """Of the run that saved it: the same step may be saved anew by another that went back."""


class _Lane:
    """One line of checkpoints, in which each step is saved once."""

    def __init__(self, manager: CheckpointManager, job: str) -> None:
        self.manager, self.job = manager, job
        self.step: int | None = None
        """That was saved here last."""


class _Placed(NamedTuple):
    """A path, taken apart: the storage of its folder, and its name there."""

    folder: BlockingStorage
    name: str


class StrataCheckpointIO:
    """A `CheckpointIO` for Lightning's Trainer, and for Fabric.

    path, job_id, and all else but rank and world_size: as `CheckpointManager` takes them. With several processes the
    first one alone writes, as Lightning has it.

    **Paths and steps.** A checkpoint is saved as the trainer's global step of the job. At the path that Lightning gives
    it, `…/epoch=0-step=100.ckpt` say, lies a ticket of a few bytes with the job and the step, so that whatever looks
    for files, such as `ckpt_path="last"`, finds one. Where one step is saved under several paths (`save_last=True`),
    the second goes to the job `{job_id}-2`, and so on: each is what Lightning gave. `save_last="link"` saves it once;
    until that is committed the link, which Lightning makes itself, leads nowhere.
    To load there are also `latest`, the latest of the job by Strata's account, and `step_100`: for machines that
    have no tickets. A dict without a global step, such as Fabric's, is saved at its path itself, and at once.

    **Keeping** is ModelCheckpoint's, unless `keep_count` says otherwise; then tickets may outlive their checkpoints.

    **Failures.** A save that fails is logged, and raised by `teardown`, at the end of `fit`; so many in a row as
    `max_failed_saves` says end training. What the failed one was to replace is kept.
    """

    def __init__(self, path: Where | None = None, *, job_id: str | None = None, **options: Any) -> None:
        config = options.get("config") or CheckpointManagerConfig()
        if isinstance(config, CheckpointManagerConfig) and config.when_busy != "wait":
            raise InvalidInput("Lightning counts on every save: leave when_busy at 'wait'")
        taken = {"rank", "world_size", "run_id"} & options.keys()
        if taken:
            raise InvalidInput(f"{', '.join(sorted(taken))}: one process saves for all in Lightning, so leave it out")
        self._path, self._options = path, options
        self._job = job_id or os.environ.get("STRATA_JOB_ID") or DEFAULT_JOB
        self._forget()

    def __repr__(self) -> str:
        return f"StrataCheckpointIO({self._path!r}, job_id={self._job!r})"

    def _forget(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._behind: ThreadPoolExecutor | None = None
        self._queue: list[Future[None]] = []
        self._making = threading.Lock()
        self._is_saved = True
        """Whether the save that came last is committed. Only the thread behind looks at it."""
        self._failure: BaseException | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For processes that Lightning spawns: what is said, and nothing of what is under way."""
        return {name: self.__dict__[name] for name in ("_path", "_options", "_job")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # -- what Lightning calls ----------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Path, storage_options: Any | None = None) -> None:
        """Returns when the state is copied, and may be changed. storage_options: `{"metrics": {…}}` go with the save.

        Raises Unstorable for what no checkpoint can hold, by its name, before anything is written.
        """
        metrics = _metrics(storage_options)
        state = plain(checkpoint)
        step = checkpoint.get("global_step")
        if type(step) is not int:
            self._save_at(path, state)
            return
        self._raise_what_nobody_counts()
        if "lr_schedulers" in state:  # theirs may hold functions, and whoever is loaded keeps its own
            state["lr_schedulers"] = without_code(state["lr_schedulers"])
        lane = self._free_lane(step)
        handle = lane.manager.save_async(state, step, epoch=int(checkpoint.get("epoch", 0)), metrics=metrics)
        lane.step = step
        _make_folder(path)
        self._then(partial(self._finish, lane, handle, path))

    def load_checkpoint(
        self, path: Path, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """What was saved at this path. weights_only: says nothing here, since no code is run in any case.

        map_location: a device, or its name, for all tensors; they come in the host's memory if nothing is said.
        """
        if map_location is not None and not isinstance(map_location, str | torch.device):
            raise InvalidInput("map_location must be a device here, or its name: tensors are stored without one")
        self.wait()
        state = self._loaded(path, going_on=True)
        return state if map_location is None else _on(map_location, state)

    def remove_checkpoint(self, path: Path) -> None:
        """Once the save before is committed. What is pinned stays."""
        self._then(partial(self._remove, path))

    def teardown(self) -> None:
        """Waits until all is written, and raises what failed."""
        self.wait()
        try:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
        finally:
            lanes, behind = self._lanes, self._behind
            self._forget()
            if behind is not None:
                behind.shutdown()
            for lane in lanes.values():
                lane.manager.close()

    # -- beyond that -------------------------------------------------------------------------------------------------

    def latest_path(self) -> str | None:
        """For `ckpt_path`: go on from the latest checkpoint of the job, if there is any."""
        self.wait()
        with self._reader(self._job) as reader:
            return None if reader.latest_step() is None else LATEST

    def load_module(self, module: Callable[..., T] | type[T], path: Path, **options: Any) -> T:
        """`Module.load_from_checkpoint(path, …)`, which knows only files of torch's: given here in memory, so that
        nothing that was stored is unpickled."""
        stream = io.BytesIO()
        self.wait()
        torch.save(self._loaded(path, going_on=False), stream)
        stream.seek(0)
        load: Callable[..., T] = getattr(module, "load_from_checkpoint")  # noqa: B009  Lightning's, on the class
        return load(stream, weights_only=False, **options)

    # -- saving, in the trainer's thread -----------------------------------------------------------------------------

    def _free_lane(self, step: int) -> _Lane:
        number = 1
        while (lane := self._lane(_job_of(self._job, number))).step == step:
            number += 1
        return lane

    def _lane(self, job: str) -> _Lane:
        with self._making:
            if job not in self._lanes:
                manager = CheckpointManager(self._path, job_id=job, rank=0, world_size=1, **self._options)
                self._lanes[job] = _Lane(manager, job)
            return self._lanes[job]

    def _save_at(self, path: Path, state: dict[str, Any]) -> None:
        """What is no step of a job is a checkpoint by itself, and the only one in its folder."""
        with CheckpointManager(os.fspath(path), keep_count=1, job_id=DEFAULT_JOB, coordinator_url="") as manager:
            manager.save(state, (manager.latest_step() or 0) + 1)

    def _then(self, work: Callable[[], None]) -> None:
        """Behind, one after the other, in the order in which Lightning wants it."""
        if self._behind is None:
            self._behind = ThreadPoolExecutor(1, "strata-lightning")
        self._queue = [*self._over(), self._behind.submit(work)]

    def _over(self) -> list[Future[None]]:
        """What is still under way; a failure among the rest is kept, to be raised."""
        for each in self._queue:
            if each.done() and self._failure is None:
                self._failure = each.exception()
        return [each for each in self._queue if not each.done()]

    def wait(self) -> None:
        """Until nothing is being written. A failure is raised where Lightning asks next."""
        for each in self._queue:
            each.exception()
        self._queue = self._over()

    def _raise_what_nobody_counts(self) -> None:
        """The manager counts saves that failed, and ends training itself. Nobody does so for tickets."""
        self._queue = self._over()
        if isinstance(self._failure, _NotPlaced):
            failure, self._failure = self._failure, None
            raise failure

    # -- behind ------------------------------------------------------------------------------------------------------

    def _finish(self, lane: _Lane, handle: SaveHandle, path: Path) -> None:
        self._is_saved = False
        handle.result()
        placed = _placed(path)
        try:
            term = lane.manager.describe(handle.step).term
            before = _ticket(placed)
            ticket = Ticket(url=lane.manager.url, job=lane.job, step=handle.step, term=term)
            placed.folder.write(placed.name, msgspec.json.format(msgspec.json.encode(ticket)) + b"\n")
            self._is_saved = True
            if before is not None:
                self._delete(before)
        except StrataError as error:
            what = f"step {handle.step} is committed in {lane.manager.url}, but {os.fspath(path)} does not say so"
            raise _NotPlaced(f"{what}: {error}", storage=placed.folder.url, key=placed.name) from error

    def _remove(self, path: Path) -> None:
        if not self._is_saved:
            logger.warning("%s is kept: the save that was to take its place has failed", os.fspath(path))
            return
        placed = _placed(path)
        ticket = _ticket(placed)
        if ticket is None:
            _remove_alone(path)
        else:
            placed.folder.delete(placed.name)  # first: a ticket without its checkpoint would be a promise
            self._delete(ticket)

    def _delete(self, ticket: Ticket) -> None:
        """The checkpoint itself, unless it is another by now, or another job's."""
        if not self._is_mine(ticket.job):
            return
        manager = self._lane(ticket.job).manager
        try:
            with suppress(NotFound):
                if manager.describe(ticket.step).term == ticket.term:
                    manager.delete(ticket.step)
        except Refused as pinned:
            logger.info("%s", pinned)

    def _is_mine(self, job: str) -> bool:
        return re.fullmatch(rf"{re.escape(self._job)}(-\d+)?", job) is not None

    # -- loading -----------------------------------------------------------------------------------------------------

    def _loaded(self, path: Path, *, going_on: bool) -> dict[str, Any]:
        ticket = self._ticket_in_time(path)
        if ticket is not None:
            self._check_named(ticket, path)
            return self._of_step(ticket.job, ticket.step, going_on=going_on)
        name = os.fspath(path)
        if _is_of_strata(path):
            step = None if name == LATEST else int(name.removeprefix("step_"))
            return self._of_step(self._job, step, going_on=going_on)
        with CheckpointReader(name, job_id=DEFAULT_JOB) as alone:
            return _as_dict(alone.load(), path)

    def _ticket_in_time(self, path: Path) -> Ticket | None:
        """Rank 0 puts it when its save is committed, for which other ranks have not waited."""
        placed, until = _placed(path), time.monotonic() + LATE_SECONDS
        while (ticket := _ticket(placed)) is None and not _is_first() and time.monotonic() < until:
            if _is_of_strata(path) or os.path.isdir(path):
                break
            time.sleep(0.2)
        return ticket

    def _check_named(self, ticket: Ticket, path: Path) -> None:
        with self._reader(ticket.job) as reader:
            if reader.describe(ticket.step).term != ticket.term:
                raise NotFound(
                    f"{os.fspath(path)} names step {ticket.step} in {ticket.url}, which was left behind by a run that "
                    "went back, and has been saved anew since: load the path under which that was saved"
                )

    def _of_step(self, job: str, step: int | None, *, going_on: bool) -> dict[str, Any]:
        """Whoever saves, and goes on from there, has it from the manager, which must know. Others only look."""
        if going_on and _is_first() and self._is_mine(job) and (lane := self._lane(job)).step is None:
            return _as_dict(lane.manager.load(step), job)
        with self._reader(job) as reader:
            return _as_dict(reader.load(step), job)

    def _reader(self, job: str) -> CheckpointReader:
        options = {name: self._options[name] for name in ("backend", "local") if name in self._options}
        return CheckpointReader(self._path, job_id=job, **options)


class _NotPlaced(StorageError):
    """A checkpoint is committed, and is not to be found where Lightning looks for it."""


# -- paths and tickets -----------------------------------------------------------------------------------------------


def _job_of(job: str, number: int) -> str:
    return job if number == 1 else f"{job}-{number}"


def _is_of_strata(path: Path) -> bool:
    """Whether it is no path, but one of Strata's names for a checkpoint."""
    name = os.fspath(path)
    return name == LATEST or _STEP.fullmatch(name) is not None


def _placed(path: Path) -> _Placed:
    folder, name = os.path.split(os.fspath(path))
    return _Placed(BlockingStorage(open_storage(folder or ".")), name)


def _make_folder(path: Path) -> None:
    """Lightning makes links to what is not there yet, in a folder that is. If it cannot be made, the ticket tells."""
    if "://" not in os.fspath(path):
        with suppress(OSError):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def _ticket(placed: _Placed) -> Ticket | None:
    """None if nothing is there; what is no ticket is refused."""
    try:
        data = placed.folder.read_range(placed.name, 0, min(TICKET_BYTES, placed.folder.size(placed.name)))
    except ObjectNotFound:
        return None
    try:
        ticket = msgspec.json.decode(data, type=Ticket)
    except (msgspec.DecodeError, UnicodeDecodeError):
        ticket = None
    if ticket is None or ticket.strata != Ticket.__struct_defaults__[0]:
        raise InvalidInput(
            f"{placed.name} in {placed.folder.url} was not saved with Strata: load it without StrataCheckpointIO"
        )
    return ticket


def _remove_alone(path: Path) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif "://" in os.fspath(path):
        folder = BlockingStorage(open_storage(os.fspath(path)))
        folder.delete_many([each.path for each in folder.list_all()])


def _is_first() -> bool:
    from lightning_utilities.core.rank_zero import rank_zero_only

    return int(getattr(rank_zero_only, "rank", 0)) == 0


# -- what is stored --------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """The same with plain containers and values for those of Lightning's and of programs' own, as far as they are
    nothing more: namespaces, dicts with attributes, paths, and text or numbers of a class of their own."""
    if isinstance(value, argparse.Namespace | types.SimpleNamespace):
        return plain(vars(value))
    if isinstance(value, dict):
        return _plain_dict(value)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and not isinstance(value, np.generic):
        return float(value)
    return value


def _plain_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    if type(value) is Counter:
        return value
    items = {key: plain(each) for key, each in value.items()}
    if type(value) is OrderedDict:
        return OrderedDict(items)
    return defaultdict(value.default_factory, items) if type(value) is defaultdict else items


def _on(device: str | torch.device, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        for key, each in value.items():
            value[key] = _on(device, each)
        return value
    return type(value)(_on(device, each) for each in value) if type(value) in (list, tuple) else value


def _as_dict(state: Any, where: Path) -> dict[str, Any]:
    if not isinstance(state, dict):
        raise InvalidInput(f"{os.fspath(where)} holds a {type(state).__name__}, which is no checkpoint of Lightning's")
    return state


def _metrics(storage_options: Any) -> dict[str, float] | None:
    if storage_options is None:
        return None
    if not isinstance(storage_options, Mapping) or storage_options.keys() - {"metrics"}:
        raise InvalidInput(f"storage_options are {{'metrics': {{…}}}} here, not {storage_options!r}")
    return dict(storage_options.get("metrics", {}))


# -- by either name --------------------------------------------------------------------------------------------------


def _make_known() -> None:
    """To each Lightning that this process may use: those that are imported, or else all that are there."""
    imported = [name for name in PACKAGES if name in sys.modules]
    interfaces = [found for name in imported or PACKAGES if (found := _interface(name)) is not None]
    if not interfaces:
        raise ModuleNotFoundError(
            "strata.integrations.lightning needs Lightning 2: pip install 'strata-runtime[lightning]'"
        )
    for interface in interfaces:
        interface.register(StrataCheckpointIO)


def _interface(name: str) -> Any:
    """None if there is no such package; if something else is missing it says so itself."""
    try:
        return import_module(f"{PACKAGES[name]}.plugins.io.checkpoint_io").CheckpointIO
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        return None


_make_known()
