"""`.metadata` of torch.distributed.checkpoint, which is a pickle: read by an unpickler that knows a few names only.

For each of them it makes an object that holds what it is given and can do nothing. Whatever else a pickle asks for is
refused before it is looked up: no module is imported, nothing of torch's is made, nothing is called but what is here.
"""

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from strata.checkpoint.dtypes import KNOWN, dtype_of
from strata.checkpoint.foreign.items import Path
from strata.errors import InvalidInput

_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    MemoryError,
    OverflowError,
)
"""What reading any bytes as a pickle may raise."""


class Slice(NamedTuple):
    """Some bytes of a file."""

    key: str
    at: int
    length: int


class Shard(NamedTuple):
    """A block of a tensor: where in it, and in which file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    slice: Slice


class DcpTensor(NamedTuple):
    """A tensor, in as many shards as ranks wrote it."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    shards: list[Shard]


class DcpValue(NamedTuple):
    """A plain value, which torch has pickled."""

    name: str
    path: Path
    slice: Slice


class DcpContents(NamedTuple):
    """What such a folder holds."""

    tensors: list[DcpTensor]
    values: list[DcpValue]


def read_dcp_metadata(data: bytes, where: str) -> DcpContents:
    """InvalidInput, saying what is wrong, for all that is not as torch writes it."""
    try:
        _check_memo(data)
        found = _Unpickler(io.BytesIO(data)).load()
    except _Refused as refused:
        raise InvalidInput(
            f"{where} is not read: it asks for {refused}, which no checkpoint of torch's needs. It may be malicious"
        ) from None
    except _BROKEN as error:
        raise InvalidInput(f"{where} is not what torch writes: {str(error) or type(error).__name__}") from error
    try:
        return _contents(found)
    except _BROKEN as error:
        raise InvalidInput(f"{where} is of no version of torch's that is known here: {error}") from error


# -- unpickling --------------------------------------------------------------------------------------------------------


class _Refused(pickle.UnpicklingError):
    pass


class _Inert:
    """Holds what it is given."""

    def __init__(self, *given: object) -> None:
        self.given = given
        self.held: dict[str, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.given, self.held = (state,), state if isinstance(state, dict) else {}


class _Metadata(_Inert): ...


class _TensorMetadata(_Inert): ...


class _BytesMetadata(_Inert): ...


class _ChunkMetadata(_Inert): ...


class _Properties(_Inert): ...


class _Index(_Inert): ...


class _StorageInfo(_Inert): ...


class _Size(tuple[int, ...]):
    __slots__ = ()


def _layout(name: object) -> object:
    return name


_KNOWN: dict[tuple[str, str], Any] = {
    (_METADATA, "Metadata"): _Metadata,
    (_METADATA, "TensorStorageMetadata"): _TensorMetadata,
    (_METADATA, "BytesStorageMetadata"): _BytesMetadata,
    (_METADATA, "ChunkStorageMetadata"): _ChunkMetadata,
    (_METADATA, "TensorProperties"): _Properties,
    (_METADATA, "MetadataIndex"): _Index,
    (_METADATA, "StorageMeta"): _Inert,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Inert,
    (_FILES, "_StorageInfo"): _StorageInfo,
    (_FILES, "_StoragePrefix"): _Inert,
    ("torch", "Size"): _Size,
    ("torch", "strided"): "strided",
    ("torch.serialization", "_get_layout"): _layout,
    ("collections", "OrderedDict"): OrderedDict,
    ("pathlib", "PosixPath"): _Inert,
    ("pathlib", "PurePosixPath"): _Inert,
    ("pathlib", "WindowsPath"): _Inert,
    ("pathlib", "PureWindowsPath"): _Inert,
    ("pathlib._local", "PosixPath"): _Inert,
    ("pathlib._local", "WindowsPath"): _Inert,
} | {("torch", name): name for name in KNOWN}


_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


def _check_memo(data: bytes) -> None:
    """Python makes room for as many objects as a pickle says that it has: no more than it has bytes."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _PUTS and argument is not None and argument > len(data):
            raise pickle.UnpicklingError(f"it numbers an object {argument:,}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        found = _KNOWN.get((module_name, global_name))
        if found is None:
            raise _Refused(f"{module_name}.{global_name}")
        return found


# -- what it means -----------------------------------------------------------------------------------------------------


def _contents(found: object) -> DcpContents:
    told = _held(found, _Metadata)
    slices = _slices(told["storage_data"])
    paths = told.get("planner_data") or {}
    contents = DcpContents([], [])
    for name, each in _mapping(told["state_dict_metadata"]).items():
        path = _path(_text(name), paths)
        if isinstance(each, _BytesMetadata):
            contents.values.append(DcpValue(name, path, slices[name, None]))
        else:
            contents.tensors.append(_tensor(name, path, _held(each, _TensorMetadata), slices))
    return contents


def _tensor(
    name: str, path: Path, told: dict[str, Any], slices: "dict[tuple[str, tuple[int, ...] | None], Slice]"
) -> DcpTensor:
    dtype, shape = _dtype(told["properties"]), _numbers(told["size"])
    shards = []
    for chunk in told["chunks"]:
        held = _held(chunk, _ChunkMetadata)
        offsets, sizes = _numbers(held["offsets"]), _numbers(held["sizes"])
        place = slices[name, offsets]
        if place.length < dtype_of(dtype).bytes * prod(sizes):
            raise ValueError(f"a shard of {name!r} has only {place.length:,} bytes")
        shards.append(Shard(offsets, sizes, place))
    _check_cover(name, shape, shards)
    return DcpTensor(name, path, dtype, shape, shards)


def _check_cover(name: str, shape: tuple[int, ...], shards: Sequence[Shard]) -> None:
    """Blocks within the tensor, and as many elements as it has: torch itself writes each once."""
    for shard in shards:
        if not len(shard.offsets) == len(shard.sizes) == len(shape) or any(
            offset + size > length for offset, size, length in zip(shard.offsets, shard.sizes, shape, strict=True)
        ):
            raise ValueError(f"a shard of {name!r} lies outside of it")
    if sum(prod(shard.sizes) for shard in shards) != prod(shape):
        raise ValueError(f"the shards of {name!r} are not all of it, or more than that")


def _slices(storage_data: object) -> "dict[tuple[str, tuple[int, ...] | None], Slice]":
    found: dict[tuple[str, tuple[int, ...] | None], Slice] = {}
    for index, info in _mapping(storage_data).items():
        key, told = _held(index, _Index), _held(info, _StorageInfo)
        if told.get("transform_descriptors"):
            raise ValueError(f"{key['fqn']!r} is stored by an extension ({told['transform_descriptors']})")
        offset = key.get("offset")
        place = Slice(_text(told["relative_path"]), _number(told["offset"]), _number(told["length"]))
        found[_text(key["fqn"]), None if offset is None else _numbers(offset)] = place
    return found


def _path(name: str, paths: object) -> Path:
    path = _mapping(paths).get(name, (name,))
    if not isinstance(path, tuple) or not path or not all(type(step) in (str, int) for step in path):
        raise ValueError(f"{name!r} has no path")
    return path


def _dtype(properties: object) -> str:
    if not isinstance(properties, _Properties) or not isinstance(properties.given[0], tuple):
        raise ValueError("a tensor without properties")
    return dtype_of(_text(properties.given[0][0])).name


def _held(found: object, kind: type[_Inert]) -> dict[str, Any]:
    if type(found) is not kind:
        raise ValueError(f"{type(found).__name__.strip('_')} stands where {kind.__name__.strip('_')} should")
    return found.held


def _mapping(found: object) -> dict[Any, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__.strip('_')} stands where a dict should")
    return found


def _text(found: object) -> str:
    if type(found) is not str:
        raise ValueError(f"{type(found).__name__} stands where a text should")
    return found


def _number(found: object) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"{found!r} is no size")
    return found


def _numbers(found: object) -> tuple[int, ...]:
    if not isinstance(found, tuple):
        raise ValueError(f"{found!r} is no shape")
    return tuple(map(_number, found))
