"""Checkpoints of other formats made Strata's own, at a step of a job: streamed, and committed by one last write.

`.safetensors`                    a file, or a folder of them with or without an index
a folder with `config.json`       of transformers: its weights under `model`, its configuration under `config`
a folder with `.metadata`         of torch.distributed.checkpoint
`.pt`, `.pth`, `.bin`, `.ckpt`    of torch.save
"""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from strata.checkpoint.assembling import Stretch, Supply
from strata.checkpoint.drafting import Content, Facts, committed, drafted, taken_already
from strata.checkpoint.foreign.dcp_metadata import Slice
from strata.checkpoint.foreign.dcp_reading import METADATA as DCP_METADATA
from strata.checkpoint.foreign.dcp_reading import DcpSource
from strata.checkpoint.foreign.hf import CONFIG, decode_config
from strata.checkpoint.foreign.items import Item, chosen, grown, name_of
from strata.checkpoint.foreign.safetensors import Place, SafetensorsSource, places_by_index, places_in, read_header
from strata.checkpoint.foreign.torch_files import TorchFile
from strata.checkpoint.matching import Keys
from strata.checkpoint.rehearsing import is_same
from strata.checkpoint.skeleton import PACKAGES
from strata.checkpoint.store import Folder, Store
from strata.core.ids import check_int
from strata.errors import InvalidInput
from strata.storage import StorageBackend, open_storage
from strata.storage.copy import nothing_at
from strata.storage.urls import locate, split_object_url

TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
SAFETENSORS = ".safetensors"
INDEX = ".safetensors.index.json"
MODEL = "model"


class ImportOptions(NamedTuple):
    """How a foreign checkpoint is taken in. keys: only what matches. under: where in the state it stands; None is the
    usual place. package: whose arrays they are when they are loaded."""

    keys: Keys | None = None
    under: str | None = None
    package: str = "torch"


class Foreign(NamedTuple):
    """A checkpoint of another format, open for reading."""

    format: str
    content: Content
    supply: Supply
    check: Callable[[], Awaitable[None]]
    """That it is still what it was."""

    @property
    def size(self) -> int:
        return sum(each.size for each in self.content.outlines)


class Imported(NamedTuple):
    """Where it is, and whether it had been there already."""

    folder: Folder
    bytes: int
    tensors: int
    was_there: bool = False


async def import_checkpoint(
    foreign: Foreign, target: Store, step: int, epoch: int = 0, progress: Callable[[int], None] = lambda count: None
) -> Imported:
    """Conflict if the target has another checkpoint of this step."""
    check_int(step, "step")
    check_int(epoch, "epoch")
    tensors = len(foreign.content.outlines)
    taken = await committed(target, step)
    for folder in taken:
        if await is_same(target, folder, foreign.content, foreign.supply, progress):
            return Imported(folder, foreign.size, tensors, was_there=True)
    if taken:
        raise taken_already(target, taken[0])
    async with drafted(target, step) as draft:
        await draft.write(foreign.content, foreign.supply, progress)
        await foreign.check()
        await draft.commit(Facts(time.time(), epoch, {}, 1))
    return Imported(Folder(step), foreign.size, tensors)


@asynccontextmanager
async def open_foreign(url: str, options: ImportOptions | None = None) -> AsyncIterator[Foreign]:
    """Whatever is there, told by its name and by what lies in it."""
    options = options or ImportOptions()
    if options.package not in PACKAGES:
        raise InvalidInput(f"arrays are of {', '.join(PACKAGES)}, not of {options.package!r}")
    if url.endswith(TORCH_FILES):
        yield _torch_file(url, options)
    elif url.endswith(SAFETENSORS):
        folder, key = split_object_url(url)
        async with open_storage(folder) as storage:
            if not await storage.exists(key):
                raise nothing_at(url)
            yield await _safetensors(storage, await read_header(storage, key), [], options)
    else:
        async with open_storage(url) as storage:
            yield await _folder(storage, url, options)


async def _folder(storage: StorageBackend, url: str, options: ImportOptions) -> Foreign:
    names = [entry.path async for entry in storage.list_folder() if not entry.is_folder]
    if not names:
        raise nothing_at(url)
    if DCP_METADATA in names:
        return await _dcp(storage, options)
    config: list[Item] = []
    if CONFIG in names:
        options = options._replace(under=MODEL if options.under is None else options.under)
        config = [Item(("config",), decode_config(await storage.read(CONFIG), f"{storage.url}/{CONFIG}"))]
    indices = [name for name in names if name.endswith(INDEX)]
    files = [name for name in names if name.endswith(SAFETENSORS)]
    if len(indices) > 1:
        raise InvalidInput(f"{url} has several indices, {', '.join(indices)}: name one file")
    if not files:
        raise InvalidInput(f"{url} holds no safetensors files, and no {DCP_METADATA} of torch: {_advice(names, url)}")
    places = await (places_by_index(storage, indices[0]) if indices else places_in(storage, files))
    return await _safetensors(storage, places, config, options)


def _advice(names: Sequence[str], url: str) -> str:
    others = [name for name in names if name.endswith(TORCH_FILES)]
    return f"name a file of torch's itself, {url.rstrip('/')}/{others[0]}" if others else "nothing can be imported"


async def _safetensors(
    storage: StorageBackend, places: Sequence[Place], config: Sequence[Item], options: ImportOptions
) -> Foreign:
    source, under = SafetensorsSource(storage, places), _steps(options.under)
    await source.remember()
    tensors, beside = chosen(source.items, config, options.keys, under)
    content, numbers = grown(tensors, options.package, under, beside)
    return Foreign("hf" if config else "safetensors", content, _renumbered(source.supply, numbers), source.check)


async def _dcp(storage: StorageBackend, options: ImportOptions) -> Foreign:
    source, under = await DcpSource.open(storage), _steps(options.under)
    found, _ = chosen([*source.tensors, *source.values], [], options.keys, under)
    items = [
        Item(item.path, await source.value(item.what, name_of(item.path))) if isinstance(item.what, Slice) else item
        for item in found
    ]
    content, numbers = grown(items, options.package, under)
    return Foreign("dcp", content, _renumbered(source.supply, numbers), _unchanged)


def _torch_file(url: str, options: ImportOptions) -> Foreign:
    location = locate(url, None, os.environ)
    if location.scheme != "file":
        raise InvalidInput(f"torch maps files of this machine only: copy it here first, with strata storage cp {url} .")
    file = TorchFile.open(os.path.expanduser(location.path), options.keys, options.under or "")
    return Foreign("torch", file.content, file.supply, _unchanged)


def _steps(under: str | None) -> tuple[str, ...]:
    return tuple(under.split("/")) if under else ()


def _renumbered(supply: Supply, numbers: Sequence[int]) -> Supply:
    async def renumbered(stretches: Sequence[Stretch]) -> None:
        await supply([each._replace(tensor=numbers[each.tensor]) for each in stretches])

    return renumbered


async def _unchanged() -> None:
    """Nothing says that it is not."""
