"""A folder of torch.distributed.checkpoint: planned and written by torch itself, from tensors that are read one by one.

torch plans with tensors that have no data; when it is one's turn to be written, it is read. Files are of a size that
memory can hold, since torch lets go of tensors only when their file is closed.
"""

import asyncio
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint.exporting import Exported, Meter
from strata.checkpoint.frameworks import framework_named
from strata.checkpoint.leaves import Leaf, LeafSupply, check_leaf, leaves_of
from strata.checkpoint.pruning import pruned
from strata.checkpoint.readers import marked
from strata.checkpoint.skeleton import PACKAGES, array_kinds, kind_of, mapped
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.tree import Node, unflatten
from strata.checkpoint.whole import Whole
from strata.errors import InvalidInput

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.planner import WriteItem

FILE_BYTES = 256 << 20
"""So much memory it takes; more only for a tensor that is larger."""


async def export_dcp(
    store: Store,
    folder: Folder,
    part: Whole,
    target: str,
    *,
    wants: Callable[[str], bool] = lambda name: True,
    meter: Meter = Meter(),  # noqa: B008  it holds nothing
) -> Exported:
    """Into a local folder, which must be empty or not there. `wants` chooses tensors and values by name."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InvalidInput(f"torch writes these folders, and it is not installed here: {error}") from error
    _check_empty(target)
    export = _Export(store, part, meter)
    async with marked(store, folder):
        try:
            await asyncio.to_thread(export.write, target, wants)
        except asyncio.CancelledError:
            export.is_stopped = True  # or the thread would go on to the end
            raise
        except Exception:
            _empty(target)
            raise
    written = sorted(entry.name for entry in os.scandir(target))
    return Exported(written, len(export.placeholders), sum(leaf.size for leaf in export.placeholders.values()))


class _Export:
    """A state whose tensors are read when they are asked for: by a thread, while the loop does the reading."""

    def __init__(self, store: Store, part: Whole, meter: Meter) -> None:
        self._part, self._meter = part, meter
        self._leaves = leaves_of(part)
        self._kinds = array_kinds(part.skeleton)
        self._supply = LeafSupply(store, part, self._leaves)
        self._loop = asyncio.get_running_loop()
        self._kept: list[torch.Tensor] = []
        self.placeholders: dict[int, Leaf] = {}
        self.is_stopped = False

    def write(self, target: str, wants: Callable[[str], bool]) -> None:
        chosen = {leaf.number for leaf in self._leaves if wants(leaf.name)}
        skeleton = pruned(self._part.skeleton, chosen.__contains__, wants)
        state = unflatten(mapped(skeleton, _bare), self._placeholder)
        if not isinstance(state, dict):
            raise InvalidInput(f"the state is no dict but a {type(state).__name__}, which torch does not write")
        self._meter.expect(sum(leaf.size for leaf in self.placeholders.values()))
        _save(state, self._read, target)

    def _placeholder(self, number: int, package: str) -> Any:
        import torch

        from strata.checkpoint.frameworks.torch import torch_dtype

        leaf = self._leaves[number]
        check_leaf(self._part, leaf)
        if self._kinds[number] not in PACKAGES:  # bytes, or a number, that stand among the values
            return framework_named("numpy").make(leaf.dtype, leaf.shape, self._bytes(leaf))
        made = torch.empty(leaf.shape, dtype=torch_dtype(leaf.dtype), device="meta")
        self._kept.append(made)
        self.placeholders[id(made)] = leaf
        return made

    def _read(self, placeholder: "torch.Tensor") -> "torch.Tensor":
        leaf = self.placeholders[id(placeholder)]
        found: torch.Tensor = framework_named("torch").make(leaf.dtype, leaf.shape, self._bytes(leaf))
        self._meter.move(leaf.size)
        return found

    def _bytes(self, leaf: Leaf) -> Any:
        if self.is_stopped:
            raise InterruptedError("the export was stopped")
        return asyncio.run_coroutine_threadsafe(self._supply.whole(leaf.number), self._loop).result()


def _save(state: dict[str, Any], read: "Callable[[torch.Tensor], torch.Tensor]", target: str) -> None:
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.distributed.checkpoint.storage import WriteResult

    class Planner(DefaultSavePlanner):
        def lookup_object(self, index: MetadataIndex) -> Any:
            found = super().lookup_object(index)
            return read(found) if isinstance(found, torch.Tensor) else found

    class Writer(FileSystemWriter):
        def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
            """torch keeps all tensors of a file until it is closed: so there are several."""
            written: list[WriteResult] = []
            for number, items in enumerate(_groups(plan.items)):
                prefix = replace(plan.storage_data, prefix=f"{plan.storage_data.prefix}{number}_")
                part = replace(plan, items=items, storage_data=prefix)
                written += super().write_data(part, planner).value()
            done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
            done.set_result(written)
            return done

    # Nothing is read ahead: where there is a GPU, torch would.
    writer = Writer(target, per_thread_copy_ahead=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            save(state, storage_writer=writer, planner=Planner(), no_dist=True)
        except CheckpointException as error:
            raise _cause(error) from error


def _groups(items: "Sequence[WriteItem]") -> "Iterator[list[WriteItem]]":
    """One after the other, as many as memory may hold."""
    group: list[WriteItem] = []
    size = 0
    for item in items:
        needs = item.tensor_storage_size() or 0
        if group and size + needs > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(item)
        size += needs
    if group:
        yield group


def _cause(error: "CheckpointException") -> BaseException:
    """What went wrong itself, which torch wraps."""
    found: BaseException = next(iter(error.failures.values()))[0]
    if type(found) is RuntimeError:  # of torch's own writer, which does not say more
        return OSError(f"torch could not write its file ({str(found).splitlines()[0]}): is there room?")
    return found


def _bare(node: Node) -> Node:
    """All arrays torch's, and no named tuples: torch would pickle them by a class that nobody else has."""
    kind = kind_of(node)
    if kind in PACKAGES:
        return {"torch": node[kind]}
    if kind == "arrays":
        return {**node, "of": "torch"}
    if kind == "named":
        return {"tuple": node["values"]}
    return node["rank"] if kind == "rank" else node


def _empty(target: str) -> None:
    """Of what was written to it, which would be in the way of the next try."""
    for entry in os.scandir(target) if os.path.isdir(target) else ():
        if entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)


def _check_empty(target: str) -> None:
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise InvalidInput(f"{target} exists already: name a folder that is empty or not there")
