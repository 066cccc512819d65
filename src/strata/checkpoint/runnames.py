"""A name for one start of all ranks: the same on each of them, and new at each start."""

import os
import re
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from strata.core.ids import check_id
from strata.errors import InvalidInput, RankFailed

PAUSE_SECONDS = 0.01
MOST_PAUSE_SECONDS = 1.0
"""Between two looks: a thousand ranks may be looking."""


def common_run(given: str | None, rank: int, size: int, patience: float) -> str:
    """InvalidInput if it has none; RankFailed if rank 0 should tell it, and does not in so many seconds."""
    found = known_run(given, rank, size, patience)
    if found is None:
        raise InvalidInput(
            "ranks that save together need a name for their run: start torch.distributed or jax.distributed before, "
            f"with one process for each of the {size} ranks, or set STRATA_RUN_ID to something that is the same on all "
            "ranks, and new at each start"
        )
    return found


def known_run(given: str | None, rank: int, size: int, patience: float, *, together: bool = True) -> str | None:
    """The one that is given, or the launcher's, or what rank 0 tells torch's process group or JAX's processes: if it is
    certain that all ranks are `together` here, since that is a call which all of them must make."""
    found = given or os.environ.get("STRATA_RUN_ID") or ("alone" if size == 1 else "")
    if together:
        found = found or _process_groups(rank, size, patience) or _jax_processes(rank, size)
    found = found or _launchers(os.environ)
    return check_id(re.sub(r"[^A-Za-z0-9._-]", "-", found)[:128], "run_id") if found else None


def _launchers(environment: Mapping[str, str]) -> str:
    """Slurm's, where each start is a step of its own. torchrun's is its user's to choose, and may be the same."""
    if {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= environment.keys():
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
        parts = [environment.get(name, "0") for name in names]
        return "slurm-" + "-".join(parts)
    return ""


def _process_groups(rank: int, size: int, patience: float) -> str:
    """Where each of its processes is a rank: those that are none would be waited for, and never answer.

    It goes through the store by which the processes found each other, and not through the group: that has a limit of
    its own, of half an hour, and is broken when it has passed.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return ""
    if torch.distributed.get_world_size() != size:
        return ""
    store = torch.distributed.distributed_c10d._get_default_store()
    if store is None:  # MPI's processes have none
        return ""
    try:
        return through_store(store, rank, patience)
    except RuntimeError as error:
        raise RankFailed(
            f"rank {rank} could not hear the name of the run from rank 0, through torch.distributed's store: {error}"
        ) from error


def through_store(store: Any, rank: int, patience: float) -> str:
    """Each rank makes its managers in the same order: how many it has made is in the store, too, so that also one which
    comes to the same store later knows."""
    made = f"strata/runs/{rank}"
    key = f"strata/run/{store.add(made, 0)}"
    if rank == 0:
        store.set(key, secrets.token_hex(8))
    ends, pause = time.monotonic() + patience, PAUSE_SECONDS
    while not store.check([key]):  # to wait there would keep others of this process from it
        if time.monotonic() > ends:
            raise RankFailed(
                f"rank 0 has not made its CheckpointManager after {patience:g} s, and rank {rank} waits for the name "
                "of the run from it: all ranks must make one. Is rank 0 still there? Its log says what it does"
            )
        time.sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)
    store.add(made, 1)
    found: bytes = store.get(key)
    return found.decode()


def _jax_processes(rank: int, size: int) -> str:
    """Where each of them is a rank, and all have as many devices: else some would wait for others that never answer."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return ""
    devices = Counter(device.process_index for device in jax.devices())
    if len(devices) != size or len(set(devices.values())) > 1:
        return ""
    from jax.experimental import multihost_utils

    own = np.frombuffer(secrets.token_bytes(8), np.uint8)
    try:
        found = multihost_utils.broadcast_one_to_all(own, is_source=rank == 0)
    except RuntimeError as error:
        raise InvalidInput(
            f"JAX's processes could not tell each other a name for their run: {error}. Set STRATA_RUN_ID to something "
            "that is the same on all ranks, and new at each start"
        ) from error
    return np.asarray(found, np.uint8).tobytes().hex()
