"""Ray Train starts the workers and starts them again; Strata keeps their checkpoints. Both know the same step.

    manager = from_ray_context("s3://bucket/runs", keep_count=3)     # in the training function, on every worker
    last = resume_step(manager)
    if last is not None:
        manager.load(last, into=state)
    …
    manager.save_async(state, step=step)
    report({"loss": loss}, manager)

The law: what Ray is told of is committed. Ray's own checkpoint is a note of a few bytes, with the place and the step;
the data goes the way of any of Strata's checkpoints, each worker's part at once. Needs `ray[train]`.
"""

import os
import re
import secrets
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from strata.checkpoint.manager import CheckpointManager, Where
from strata.errors import InvalidInput, NotFound
from strata.logs import get_logger

try:
    train: Any = import_module("ray.train")
    broadcast_from_rank_zero: Any = import_module("ray.train.collective").broadcast_from_rank_zero
except ImportError as missing:
    raise ModuleNotFoundError("strata.integrations.ray needs Ray Train: pip install 'strata-runtime[ray]'") from missing

logger = get_logger("strata.integrations.ray")

NOTE = "strata.json"

_reported: WeakKeyDictionary[CheckpointManager, int] = WeakKeyDictionary()
"""The step that Ray was told of last."""


class Note(msgspec.Struct, frozen=True):
    """What Ray keeps of a checkpoint."""

    url: str
    step: int


def from_ray_context(path: Where | None = None, *, job_id: str | None = None, **options: Any) -> CheckpointManager:
    """A CheckpointManager with the rank and the size of the world that Ray has given this worker: so call it on all.

    path: a URL, or an absolute path to a disk that all workers share. job_id: the name of Ray's run, if nothing is
    said; one that Ray makes up is new with each `fit`, so give it one, `RunConfig(name="gpt")`, to go on from it later.
    """
    if isinstance(path, str | os.PathLike) and not options.get("backend"):
        named = os.fspath(path)
        if "://" not in named and not os.path.isabs(named):
            raise InvalidInput(f"{named!r} is another folder for each of Ray's workers: give a URL or an absolute path")
    context = train.get_context()
    job = job_id or os.environ.get("STRATA_JOB_ID") or _as_id(context.get_experiment_name())
    # A new one at each start of the workers, also where Ray has started some of them anew.
    options.setdefault("run_id", broadcast_from_rank_zero(secrets.token_hex(8)))
    place = {"rank": context.get_world_rank(), "world_size": context.get_world_size()}
    return CheckpointManager(path, job_id=job, **place, **options)


def report(metrics: dict[str, Any], manager: CheckpointManager, *, wait: bool = False) -> None:
    """`ray.train.report` with the latest checkpoint that is committed, if Ray was not told of it yet.

    wait: until the last save is; raises why it will not be. As Ray wants it, all workers must call this equally often.
    """
    if wait and manager.saves:
        manager.saves[-1].result()
    if train.get_context().get_world_rank() != 0:
        train.report(metrics)
        return
    committed = [handle.step for handle in manager.saves if handle.status == "committed"]
    step = committed[-1] if committed else None
    if step is None or _reported.get(manager) == step:
        train.report(metrics)
        return
    with tempfile.TemporaryDirectory(prefix="strata-") as folder:
        Path(folder, NOTE).write_bytes(msgspec.json.encode(Note(manager.url, step)))
        train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))
    _reported[manager] = step


def resume_step(manager: CheckpointManager) -> int | None:
    """Where to go on from, the same on all workers, so call it on all: the latest of the job, which is the one that Ray
    was told of, or one that was committed after that. None to begin at the start."""
    known, step = train.get_checkpoint(), manager.latest_step()
    if known is not None:
        _check_same(note_of(known), manager, step)
    return broadcast_from_rank_zero(step)  # type: ignore[no-any-return]


def note_of(checkpoint: Any) -> Note:
    """Which of Strata's checkpoints one of Ray's stands for: `note_of(result.checkpoint).step`, say."""
    with checkpoint.as_directory() as folder:
        note = Path(folder, NOTE)
        if not note.is_file():
            raise InvalidInput(f"{checkpoint} is not one that strata.integrations.ray reported: load it as Ray does")
        try:
            return msgspec.json.decode(note.read_bytes(), type=Note)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"{note.name} in {checkpoint} does not say which step it is: {error}") from error


def _check_same(note: Note, manager: CheckpointManager, latest: int | None) -> None:
    if note.url != manager.url:
        raise InvalidInput(f"Ray goes on from step {note.step} in {note.url}, and this manager saves in {manager.url}")
    if latest is None:
        raise NotFound(f"Ray goes on from step {note.step} in {note.url}, where there is no checkpoint any more")
    if latest < note.step:
        logger.warning("Ray knows of step %d in %s, and the latest is step %d: that it is", note.step, note.url, latest)


def _as_id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:128] or "default"
