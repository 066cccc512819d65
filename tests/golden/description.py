"""Describes a loaded state as JSON, so that a later version can compare what it reads with what was written."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from strata import CheckpointReader
from strata.data import DatasetIndex

JOB = "golden"


def steps_in(folder: Path, local: Path | None = None, rank: int = 0) -> dict[str, Any]:
    """Everything a reader finds there: each step's state, and what the checkpoint says of itself."""
    found = {}
    with CheckpointReader(folder, job_id=JOB, local=local, rank=rank) as reader:
        for step in reader.list_checkpoints():
            reader.verify(step)
            said = reader.describe(step)
            about = {"epoch": said.epoch, "metrics": {name: repr(value) for name, value in said.metrics.items()}}
            found[str(step)] = {"state": describe(reader.load(step)), **about}
        return {"latest": reader.latest_step(), "steps": found}


def describe(value: Any) -> Any:
    """The type and content of each leaf. Arrays are described by dtype, shape and the digest of their bytes."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        data = np.ascontiguousarray(array).tobytes()
        return {"array": str(array.dtype), "shape": list(array.shape), "sha256": sha256(data).hexdigest()}
    if hasattr(value, "detach"):
        return describe_tensor(value)
    if isinstance(value, Mapping):
        kind = type(value).__name__ if isinstance(value, Counter | OrderedDict) else "dict"
        return {kind: [[describe(key), describe(each)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [describe(each) for each in value]}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: sorted(repr(each) for each in value)}
    return {type(value).__name__: repr(value)}


def describe_index(index: DatasetIndex) -> dict[str, Any]:
    """What of an index a later version must find again."""
    blocks, within = index.locate(np.arange(index.rows))
    return {
        "rows": index.rows,
        "fingerprint": index.fingerprint,
        "columns": [str(field) for field in index.schema],
        "blocks": describe(np.asarray(blocks, np.int64)),
        "within": describe(np.asarray(within, np.int64)),
    }


def describe_tensor(tensor: Any) -> dict[str, Any]:
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"tensor": str(tensor.dtype), "shape": list(tensor.shape), "sha256": sha256(data).hexdigest()}


def missing_from(expected: Any, found: Any, path: str = "") -> list[str]:
    """The paths at which `found` lacks what `expected` has. `found` may have more keys: later versions add fields."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lacking = [f"{path}/{key}: it is gone" for key in expected if key not in found]
        both = [key for key in expected if key in found]
        return lacking + [line for key in both for line in missing_from(expected[key], found[key], f"{path}/{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for at, (old, new) in pairs for line in missing_from(old, new, f"{path}/{at}")]
    return [] if expected == found else [f"{path}: {expected!r} was written, {found!r} is read"]
