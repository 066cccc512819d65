"""Whom this process is in its job, for all that it does there."""

import os
import socket

from strata.config import Config, place_in_world
from strata.core.ids import check_id, check_int
from strata.session.session import Who


def who_is(settings: Config, job: str, rank: int, world_size: int) -> Who:
    """All that a process does in a job it does under one name. One that is given is for all ranks of a node."""
    named = settings["worker_id"]
    worker = f"rank-{rank}" if not named else named if world_size == 1 else f"{named}-{rank}"
    return Who(job, worker, rank, world_size)


def who_takes_part(config: Config, job: str) -> Who:
    """One of the ranks that are said; else the only one."""
    return who_is(config, job, *place_in_world(None, None, config))


def who_joins(config: Config, job: str) -> Who:
    """One of the ranks that are said; what of rank and size is not said is the coordinator's to say. Without a rank it
    is a worker of its own."""
    rank, size = config["rank"], config["world_size"]
    if size == 1 or (rank is not None and size is not None):
        return who_takes_part(config, job)
    named = config["worker_id"]
    if rank is None:
        return Who(job, check_id(named or f"{socket.gethostname()}-{os.getpid()}", "worker_id"), None, size)
    check_int(rank, "rank")
    return Who(job, check_id(f"{named}-{rank}" if named else f"rank-{rank}", "worker_id"), rank)
