"""Copies between CUDA devices and pinned host memory, on streams of their own: what computes goes on meanwhile.

A copy waits for what was queued on the caller's stream before it. What is queued after may run beside it: whoever is
about to change what is being copied must `hold` first.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch

from strata.checkpoint.frameworks.base import Block

Pairs: TypeAlias = Iterable[tuple[torch.Tensor, torch.Tensor]]
"""From, to."""

_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    known = _streams.get(device)
    if known is None:
        known = _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return known


class GpuCopies:
    """Copies under way. They keep from being freed what they read and write."""

    def __init__(self, events: dict[torch.device, torch.cuda.Event], held: list[torch.Tensor]) -> None:
        self._events, self._held = events, held

    @classmethod
    def begin(cls, by_device: Mapping[torch.device, Pairs]) -> "GpuCopies":
        """All of them, in order, for each device."""
        events: dict[torch.device, torch.cuda.Event] = {}
        held: list[torch.Tensor] = []
        for device, pairs in by_device.items():
            stream, before = _stream(device), torch.cuda.current_stream(device)
            with torch.no_grad(), torch.cuda.stream(stream):
                stream.wait_stream(before)
                for source, target in pairs:
                    target.copy_(source, non_blocking=True)
                    held += (source, target)
                events[device] = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                events[device].record(stream)
        return cls(events, held)

    def wait(self) -> None:
        for event in self._events.values():
            event.synchronize()
        self._held = []

    def hold(self) -> None:
        for device, event in self._events.items():
            torch.cuda.current_stream(device).wait_event(event)


def pin(block: Block) -> str:
    """Let GPUs reach this memory by themselves, for as long as it lives. Says why not, if not.

    torch's own pinned memory comes in powers of two, so up to twice what is needed.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = block.ctypes.data
    problem = int(runtime.cudaHostRegister(address, block.nbytes, 0))
    if problem:
        return str(runtime.cudaGetErrorString(runtime.cudaError(problem)))
    owner = block if block.base is None else block.base
    weakref.finalize(owner, _unpin, address).atexit = False
    return ""


def _unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
