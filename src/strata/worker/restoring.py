"""What a training loop finds in a checkpoint, and in a batch."""

from typing import Any

from strata.checkpoint.manifest import Metadata
from strata.errors import CheckpointMismatch


def check_data(found: Metadata, name: str) -> None:
    """A model that has learned from data must not be given the same again, and nobody notice."""
    if found.step == 0 or name in found.data:
        return
    known = f"it has that of {', '.join(sorted(found.data))}" if found.data else "it has none"
    raise CheckpointMismatch(
        f"the checkpoint of step {found.step} does not say where the data {name!r} was: {known}. It was saved by "
        "another program, or with another loader (with or without dataset_id, or with another). Go on as it was "
        "saved; or load it yourself, and begin a new job with what it has"
    )


def put(loaded: Any, here: Any) -> Any:
    """Into the dicts and lists that are here, so that whoever holds one of them has it; gives what is there then."""
    if isinstance(here, dict) and isinstance(loaded, dict):
        here.update({name: put(each, here.get(name)) for name, each in loaded.items()})
        return here
    if isinstance(here, list) and isinstance(loaded, list):
        here[:] = [put(each, here[place] if place < len(here) else None) for place, each in enumerate(loaded)]
        return here
    return loaded


def samples_in(batch: Any) -> int | None:
    """How many are in it, if it is a table: as many as the first of its columns has."""
    columns = batch.values() if isinstance(batch, dict) else ()
    return next((len(each) for each in columns if isinstance(each, list) or getattr(each, "shape", None)), None)
