"""A name for one start of all ranks: the same on each of them, and new at each start."""

import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Mapping

import numpy as np

from strata.core.ids import check_id
from strata.errors import InvalidInput


def common_run(given: str | None, rank: int, size: int) -> str:
    """InvalidInput if it has none."""
    found = known_run(given, rank, size)
    if found is None:
        raise InvalidInput(
            "ranks that save together need a name for their run: start torch.distributed or jax.distributed before, "
            f"with one process for each of the {size} ranks, or set STRATA_RUN_ID to something that is the same on all "
            "ranks, and new at each start"
        )
    return found


def known_run(given: str | None, rank: int, size: int, *, together: bool = True) -> str | None:
    """The one that is given, or the launcher's, or what rank 0 tells torch's process group or JAX's processes: if it is
    certain that all ranks are `together` here, since that is a call which all of them must make."""
    found = given or os.environ.get("STRATA_RUN_ID") or ("alone" if size == 1 else "")
    if together:
        found = found or _process_groups(rank, size) or _jax_processes(rank, size)
    found = found or _launchers(os.environ)
    return check_id(re.sub(r"[^A-Za-z0-9._-]", "-", found)[:128], "run_id") if found else None


def _launchers(environment: Mapping[str, str]) -> str:
    """Slurm's, where each start is a step of its own. torchrun's is its user's to choose, and may be the same."""
    if {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= environment.keys():
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
        parts = [environment.get(name, "0") for name in names]
        return "slurm-" + "-".join(parts)
    return ""


def _process_groups(rank: int, size: int) -> str:
    """Where each of its processes is a rank: those that are none would be waited for, and never answer."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return ""
    if torch.distributed.get_world_size() != size:
        return ""
    found = [secrets.token_hex(8) if rank == 0 else ""]
    torch.distributed.broadcast_object_list(found)
    return found[0]


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
