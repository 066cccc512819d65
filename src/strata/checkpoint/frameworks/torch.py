"""torch's tensors. Imported only where torch is."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from strata.checkpoint.boxes import Box
from strata.checkpoint.dtypes import KNOWN, dtype_of
from strata.checkpoint.frameworks.base import COPIED, Block, Copying, Described, Layout, carved, span
from strata.checkpoint.frameworks.dtensor import empty_spread, is_spread, shards_of
from strata.checkpoint.frameworks.gpu import GpuCopies, Pairs
from strata.errors import Unstorable

_NAMES = {getattr(torch, name): name for name in KNOWN if hasattr(torch, name)}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_COMPLEX = {name for name in _DTYPES if name.startswith("complex")}
_STRIDED = torch.strided
_PLAIN = {torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)}


def _on_host(dtype: torch.dtype) -> "np.dtype[Any]":
    """numpy's type for it, or one of as many bytes where numpy has none."""
    try:
        found = np.dtype(_NAMES[dtype])
        if torch.from_numpy(np.zeros(1, found)).dtype is dtype:
            return found
    except TypeError:
        pass
    return np.dtype(f"u{dtype.itemsize}" if dtype.itemsize == 1 else f"i{dtype.itemsize}")


_ON_HOST = {dtype: _on_host(dtype) for dtype in _NAMES}


class TorchArrays:
    """torch."""

    name = "torch"

    def owns(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def describe(self, value: torch.Tensor) -> Described:
        dtype = _NAMES.get(value.dtype)
        if type(value) not in _PLAIN or dtype is None or value.layout is not _STRIDED or value.is_nested:
            if dtype is not None and is_spread(value):
                return Described(dtype, tuple(value.shape), value.nbytes, shards=shards_of(value))
            raise Unstorable(_why_not(value))
        on_host = value.is_cpu
        if not on_host and value.is_meta:
            raise Unstorable("the tensor is on the device `meta` and has no data: materialise it first")
        shape, size = tuple(value.shape), value.nbytes
        # The memory of one that is negated or conjugated holds other numbers than it does.
        if not size or value.is_neg() or (dtype in _COMPLEX and value.is_conj()):
            return Described(dtype, shape, size, on_device=not on_host)
        start = value.data_ptr()
        if value.is_contiguous():
            return Described(dtype, shape, size, start, size, None, on_host, not on_host)
        item = value.itemsize
        strides = tuple([step * item for step in value.stride()])
        first, last = span(shape, strides, item)
        return Described(dtype, shape, size, start + first, last - first, strides, False, not on_host)

    def copy_out(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        on_gpus: dict[torch.device, list[tuple[torch.Tensor, Block]]] = {}
        with torch.no_grad():
            for value, block in pairs:
                if value.device.type == "cuda":
                    on_gpus.setdefault(value.device, []).append((value, block))
                else:
                    _typed(block, value.dtype, value.shape).copy_(value.detach())
        return GpuCopies.begin({device: _to_host(own) for device, own in on_gpus.items()}) if on_gpus else COPIED

    def device_bytes(self, value: torch.Tensor) -> Any:
        if value.device.type == "cpu" or not value.is_contiguous() or value.is_neg() or value.is_conj():
            return None
        return value.detach().view(-1).view(torch.uint8)

    def make(self, dtype: str, shape: tuple[int, ...], data: Block) -> Any:
        return _typed(data, torch_dtype(dtype), shape)

    def carve(self, dtype: str, shapes: Iterable[tuple[int, ...]], data: Block) -> list[Any] | None:
        wanted = torch_dtype(dtype)
        made = list(map(torch.from_numpy, carved(data.view(_ON_HOST[wanted]), shapes)))
        return made if made[0].dtype is wanted else [each.view(wanted) for each in made]

    def view(self, layout: Layout, data: Block) -> Any:
        made, item = torch.empty(0, dtype=torch_dtype(layout.dtype)), dtype_of(layout.dtype).bytes
        storage = torch.from_numpy(data).untyped_storage()
        offset = data.ctypes.data - storage.data_ptr() + layout.offset
        with torch.no_grad():
            return made.set_(storage, offset // item, layout.shape, tuple(step // item for step in layout.strides))

    def is_writable(self, value: torch.Tensor) -> bool:
        return True

    def memory(self, value: torch.Tensor) -> Block | None:
        if value.device.type != "cpu" or not value.is_contiguous() or not value.numel():
            return None
        if value.is_neg() or value.is_conj():
            return None
        return value.detach().view(-1).view(torch.uint8).numpy()

    def refusal(self, value: torch.Tensor) -> str | None:
        if any(step == 0 and length > 1 for step, length in zip(value.stride(), value.shape, strict=True)):
            return "several elements of the tensor are one in memory, as expand() makes them: load into a clone() of it"
        return None

    def copy_in(self, value: torch.Tensor, data: Block) -> None:
        with torch.no_grad():
            value.detach().copy_(_typed(data, value.dtype, value.shape))

    def part(self, value: torch.Tensor, index: tuple[slice, ...]) -> Any:
        return value.detach()[index]

    def copy_to_device(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        on_gpus: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for target, block in pairs:
            source = _typed(block, target.dtype, target.shape)
            if target.device.type == "cuda":
                on_gpus.setdefault(target.device, []).append((source, target))
            else:
                target.copy_(source)
        for device in on_gpus:  # whatever stream still uses it
            torch.cuda.synchronize(device)
        return GpuCopies.begin(on_gpus) if on_gpus else COPIED

    def outline(self, template: torch.Tensor) -> tuple[str, tuple[int, ...]]:
        dtype = _NAMES.get(template.dtype)
        if dtype is None or template.is_nested:
            raise Unstorable(_why_not(template))
        return dtype, tuple(template.shape)

    def empty_like(self, template: torch.Tensor) -> Any:
        if is_spread(template):
            return empty_spread(template)
        where = torch.device("cpu") if template.device.type == "meta" else template.device
        return torch.empty(template.shape, dtype=template.dtype, device=where)

    def boxes_like(self, template: torch.Tensor) -> list[Box]:
        raise AssertionError("its arrays are filled")

    def make_like(self, template: torch.Tensor, blocks: Sequence[Block]) -> Any:
        raise AssertionError("its arrays are filled")


def torch_dtype(name: str) -> torch.dtype:
    found: torch.dtype | None = _DTYPES.get(name)
    if found is None:
        raise Unstorable(f"torch has no {name}: load it as numpy arrays")
    return found


def _to_host(pairs: list[tuple[torch.Tensor, Block]]) -> Pairs:
    """One by one: the first is on its way before the last is looked at."""
    for value, block in pairs:
        yield value.detach(), _typed(block, value.dtype, value.shape)


def _typed(block: Block, dtype: torch.dtype, shape: Iterable[int]) -> torch.Tensor:
    """Given its type and shape by numpy, which is faster at it."""
    if not block.size:
        return torch.empty(tuple(shape), dtype=dtype)
    made = torch.from_numpy(np.ndarray(tuple(shape), _ON_HOST[dtype], block))
    return made if made.dtype is dtype else made.view(dtype)


def _why_not(value: torch.Tensor) -> str:
    if value.is_nested:
        return "a nested tensor cannot be stored: store the tensors in it, as unbind() gives them"
    if value.layout is not torch.strided:
        return f"a tensor with the layout {value.layout} cannot be stored: make it dense with to_dense()"
    if type(value) not in _PLAIN:
        return f"a {type(value).__module__}.{type(value).__name__} cannot be stored: take its plain tensors"
    return f"a tensor of {value.dtype} cannot be stored: dequantize it, or view it as integers"
