"""Saving while the next step computes: an optimizer's step waits for the copies, on the device, and nothing else does.

What optimizers own, their parameters and their state, changes only in their steps. So those may be copied while
forward and backward run, if each step first waits for the copies. Everything else is copied before `save_async`
returns, and so is what belongs to an optimizer that has not stepped yet, or whose step may be replayed as a CUDA graph,
in which no hook runs.

The law: a change that nobody waited for fails the save. Tensors count their changes, and are asked.
"""

import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from strata.checkpoint.frameworks import Copying
from strata.checkpoint.frameworks.dtensor import is_spread
from strata.errors import Conflict, InvalidInput


class Deferred:
    """Copies of what optimizers own, under way."""

    def __init__(self, copying: Copying, values: Iterable[torch.Tensor]) -> None:
        self._copying = copying
        self._unchanged: dict[int, list[tuple[torch.Tensor, int]]] = {}
        """By address, what nobody may have changed yet, and how often it had been changed."""
        for value in values:
            self._unchanged.setdefault(address_of(value), []).append((value, _version(value)))
        self._addresses = sorted(self._unchanged)
        self._lock = threading.Lock()
        self._torn = False
        self.is_over = False

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """An optimizer is about to step, and to change these. Each waits, on whatever stream it runs: that another has
        waited on its own is of no help."""
        with self._lock:
            if not self.is_over:
                for start, end in set(map(_extent, tensors)):
                    within = slice(bisect_left(self._addresses, start), bisect_left(self._addresses, end))
                    for address in self._addresses[within]:
                        self._check(self._unchanged.pop(address, []))
                self._copying.hold()

    def finish(self) -> None:
        """Until the copies are made. Conflict if anything changed what was being copied, and did not wait."""
        self._copying.wait()
        with self._lock:
            for values in self._unchanged.values():
                self._check(values)
            self._unchanged = {}
            self.is_over = True
        if self._torn:
            raise Conflict(
                "a tensor that an optimizer owns was changed while it was being saved, and not by the optimizer's "
                "step: wait_staged() before changing it, or save without overlap"
            )

    def _check(self, values: list[tuple[torch.Tensor, int]]) -> None:
        self._torn = self._torn or any(_version(value) != known for value, known in values)


class OptimizerOverlap:
    """Knows every optimizer that has stepped since this was made."""

    def __init__(self) -> None:
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._deferred: Deferred | None = None
        itself = weakref.ref(self)

        def before_step(optimizer: Optimizer, *_: object) -> None:
            found = itself()
            if found is not None:
                found._before_step(optimizer)

        self._hook = register_optimizer_step_pre_hook(before_step)

    def close(self) -> None:
        self._hook.remove()

    def owned(self) -> Callable[[Any], bool]:
        """Whether a tensor, or some rows of one, changes in nothing but the steps of optimizers."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise InvalidInput("a save cannot be part of a CUDA graph: save between two replays")
        extents: set[tuple[int, int]] = set()
        for optimizer in self.optimizers:
            if not any(group.get("capturable") for group in optimizer.param_groups):
                extents |= set(map(_extent, _tensors(optimizer)))
        ordered = sorted(extents)
        starts = [start for start, _ in ordered]

        def is_owned(value: Any) -> bool:
            address = address_of(value) if isinstance(value, torch.Tensor) else 0
            place = bisect_right(starts, address) - 1
            return address > 0 and place >= 0 and address < ordered[place][1]

        return is_owned

    def defer(self, copying: Copying, values: Iterable[torch.Tensor]) -> Deferred:
        """From now on steps wait for these."""
        self._deferred = Deferred(copying, values)
        return self._deferred

    def _before_step(self, optimizer: Optimizer) -> None:
        self.optimizers.add(optimizer)
        deferred = self._deferred
        if deferred is None:
            return
        if deferred.is_over:
            self._deferred = None
        else:
            deferred.hold(_tensors(optimizer))


def _tensors(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def address_of(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.device.type == "cuda" else 0


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """From where to where it lies: some rows of it may be what is copied. Among the elements of one that has gaps, and
    behind what is here of one that lies on many ranks, may be what nobody owns: of those, where they begin."""
    start, is_whole = address_of(tensor), tensor.is_contiguous() and not is_spread(tensor)
    return start, start + max(1, tensor.nbytes if is_whole else 1)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
