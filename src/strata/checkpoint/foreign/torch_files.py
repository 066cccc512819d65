"""Files of torch.save: opened with weights_only=True, so that nothing in them is run, and mapped, so that tensors stay
on the disk until it is their turn."""

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from strata.checkpoint.assembling import Outline, Stretch
from strata.checkpoint.drafting import Content
from strata.checkpoint.foreign.unpickling import unpickled
from strata.checkpoint.matching import Keys, chooser
from strata.checkpoint.preparing import Planner, Prepared
from strata.checkpoint.pruning import pruned
from strata.checkpoint.saving import TREE
from strata.checkpoint.skeleton import plain_values
from strata.checkpoint.sources import Room
from strata.checkpoint.tree import flatten, unflatten
from strata.errors import InvalidInput


class TorchFile:
    """A state that lies in a file of torch's."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared

    @classmethod
    def open(cls, path: str, keys: Keys | None = None, under: str = "") -> "TorchFile":
        """InvalidInput for what torch does not open like this."""
        state = _loaded(path)
        if keys is not None:
            state = _only(state, keys)
        for key in reversed(under.split("/") if under else []):
            state = {key: state}
        return cls(Planner().prepare(state))

    @property
    def content(self) -> Content:
        outlines = [Outline(each.name, each.dtype, each.shape, each.size, each.shift) for each in self._prepared.stored]
        return Content(0, TREE, self._prepared.skeleton, self._prepared.leaves, outlines)

    async def supply(self, stretches: Sequence[Stretch]) -> None:
        await asyncio.to_thread(self._copy, stretches)

    def _copy(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            source = self._prepared.sources[stretch.tensor]
            source.read(stretch.start, len(stretch.target), Room(stretch.target), 0)


def _loaded(path: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise InvalidInput(f"torch reads {path}, and it is not installed here: {error}") from error
    if not os.path.isfile(path):
        raise InvalidInput(f"there is no file {path}")
    return unpickled(partial(torch.load, path, mmap=True), path, "Save a state_dict alone")


def _only(state: Any, keys: Keys) -> Any:
    flat = flatten(state)
    names = [leaf.name for leaf in flat.leaves]
    wants = chooser([*names, *plain_values(flat.skeleton)], keys)
    skeleton = pruned(flat.skeleton, lambda number: wants(names[number]), wants)
    return unflatten(skeleton, lambda number, _: flat.leaves[number].value)
