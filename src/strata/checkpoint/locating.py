"""Which job's checkpoints a URL means: their root, the job's own folder, or one checkpoint in it.

{root}                                     as it is given to CheckpointManager: the job is found in it, or named
{root}/{job}  {root}/{job}/checkpoints     the job itself
{root}/{job}/checkpoints/step_1000         one checkpoint
"""

import asyncio
from typing import NamedTuple

from strata.checkpoint.lineage import LINEAGE
from strata.checkpoint.store import Folder, folder_named
from strata.core.ids import check_id
from strata.errors import InvalidInput, NotFound
from strata.storage import StorageBackend, open_storage
from strata.storage.urls import split_object_url

CHECKPOINTS = "checkpoints"
LOOKS_AT_ONCE = 16
TOLD = 20


class Place(NamedTuple):
    """A root as `open_storage` takes it; the job and the checkpoint in it, where they are known."""

    root: str
    job: str = ""
    folder: Folder | None = None


async def pointed_at(url: str) -> Place:
    """What the URL alone says. A root may be called `checkpoints` too, so what lies there decides."""
    above, name = split_object_url(url)
    folder = folder_named(name)
    if folder is not None:
        job_folder, called = split_object_url(above)
        root, job = split_object_url(job_folder)
        if called == CHECKPOINTS and job:
            return Place(root, job, folder)
    async with open_storage(url) as storage:
        if name == CHECKPOINTS and await _holds_checkpoints(storage, ""):
            return Place(*split_object_url(above))
        if name and await _holds_checkpoints(storage, CHECKPOINTS):
            return Place(above, name)
    return Place(url)


async def find_place(url: str, job: str | None = None, usual: str | None = None) -> Place:
    """The job that is meant: the one said, or in the URL, or the usual one, or the only one that there is."""
    place = await pointed_at(url)
    if job is not None:
        check_id(job, "job")
        if place.job and place.job != job:
            raise InvalidInput(f"{url} is of job {place.job}, and not of {job}: name the root, or leave out the job")
    job = job or place.job or usual
    if place.folder is not None and job:
        return place
    async with open_storage(place.root) as storage:
        if job:
            if await _holds_checkpoints(storage, f"{check_id(job, 'job')}/{CHECKPOINTS}"):
                return Place(place.root, job)
            raise _none_of(job, url, await jobs_in(storage))
        return Place(place.root, _only(await jobs_in(storage), url))


async def jobs_in(storage: StorageBackend) -> list[str]:
    """Those that have checkpoints below this root."""
    names = [entry.path.rstrip("/") async for entry in storage.list_folder() if entry.is_folder]
    turn = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def is_job(name: str) -> bool:
        async with turn:
            return await _holds_checkpoints(storage, f"{name}/{CHECKPOINTS}")

    answers = await asyncio.gather(*map(is_job, names))
    return sorted(name for name, is_one in zip(names, answers, strict=True) if is_one)


async def _holds_checkpoints(storage: StorageBackend, folder: str) -> bool:
    async for entry in storage.list_folder(folder):
        name = entry.path.rstrip("/").rpartition("/")[2]
        if name == LINEAGE or (entry.is_folder and folder_named(name) is not None):
            return True
    return False


def _only(jobs: list[str], url: str) -> str:
    if not jobs:
        raise NotFound(f"there are no checkpoints at {url}")
    if len(jobs) > 1:
        raise InvalidInput(f"{url} holds the checkpoints of several jobs, {some_jobs(jobs)}: say which, with --job")
    return jobs[0]


def _none_of(job: str, url: str, others: list[str]) -> NotFound:
    there = f"; there are some of {some_jobs(others)}" if others else ""
    return NotFound(f"there are no checkpoints of job {job} at {url}{there}")


def some_jobs(jobs: list[str]) -> str:
    """The first of them, for people."""
    return ", ".join(jobs[:TOLD]) + (f" and {len(jobs) - TOLD} more" if len(jobs) > TOLD else "")
