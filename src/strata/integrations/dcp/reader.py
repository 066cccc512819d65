"""`StrataReader`: torch.distributed.checkpoint loads from a Strata checkpoint, whoever saved it and on how many ranks.

Only chunks that hold some of what this rank wants are read, and each is compared with its digest. Values are made here
of what the checkpoint says, and given to the load planner as it wants them: pickled. Nothing that was stored is
unpickled.
"""

import asyncio
import traceback
import weakref
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from strata import background
from strata.checkpoint.boxes import Box
from strata.checkpoint.checkpoints import Survey
from strata.checkpoint.frameworks import Block, framework_named
from strata.checkpoint.gathering import memory_for, once, wishes_for
from strata.checkpoint.given import whole_number
from strata.checkpoint.leaves import Leaf, LeafSupply
from strata.checkpoint.manager import LATEST_TRIES, Where
from strata.checkpoint.manifest import BYTES
from strata.checkpoint.readers import CheckpointGone, gone, marked
from strata.checkpoint.reading import ChunkReader, Placed, Wish
from strata.checkpoint.skeleton import array_kinds
from strata.checkpoint.store import Folder
from strata.checkpoint.verifying import check_lengths
from strata.checkpoint.watched import STUCK_SECONDS, watched
from strata.checkpoint.whole import Whole, pieces_of
from strata.errors import CheckpointDamaged, Conflict, InvalidInput
from strata.integrations.dcp.catalogue import TENSORS, Catalogue, pickled
from strata.integrations.dcp.places import is_step, run_at, step_of

T = TypeVar("T")
BATCH_BYTES = 256 << 20
"""So much is read at a time of what cannot be read to where it goes; more only for a slice that is larger."""


class Opened(NamedTuple):
    """A checkpoint that nobody deletes until the mark is closed."""

    folder: Folder
    attempt: str
    whole: Whole
    catalogue: Catalogue
    mark: AsyncExitStack


class Slice(NamedTuple):
    """A part of a tensor that a rank wants, and where it goes."""

    item: ReadItem
    leaf: Leaf
    box: Box
    target: torch.Tensor


class StrataReader(StorageReader):
    """Loads from the checkpoints of a job.

    url, backend, job_id: as CheckpointReader takes them. step: which one; the latest that is committed, if nothing is
    said here or as `checkpoint_id`. rank: whose own values are loaded of what ranks saved as PerRank; this process's in
    its group. resume: this process goes on from what it loads, so that what its next StrataWriter saves there leaves
    later steps behind. False for who only looks. timeout: the longest that nothing may come of a call to the storage.
    """

    def __init__(
        self,
        url: Where | None = None,
        step: int | None = None,
        *,
        job_id: str | None = None,
        backend: str | None = None,
        rank: int | None = None,
        resume: bool = True,
        timeout: float | None = STUCK_SECONDS,
    ) -> None:
        super().__init__()
        self._run = run_at(url, backend, job_id)
        self._step = None if step is None else whole_number(step, "step")
        self._rank, self._resume, self._timeout = rank, resume, timeout
        self._opened: Opened | None = None
        self._seen: Survey | None = None
        """What was there when the checkpoint that is open was looked for."""
        self._lost: Exception | None = None

    def __repr__(self) -> str:
        return f"StrataReader({self._run.checkpoints.where!r}, step={self._step})"

    # -- what torch calls, in its order ------------------------------------------------------------------------------

    def reset(self, checkpoint_id: Any = None) -> None:
        self._close()
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What there is. After an error torch comes a second time, with a rank: for what that has by itself, which
        is nothing. Unless it hears then what was wrong, its caller does not either."""
        if "rank" in kwargs and self._lost is not None:
            raise CheckpointException("read_metadata", {kwargs["rank"]: (self._lost, traceback.StackSummary())})
        self._close()
        try:
            self._opened = opened = self._wait(self._open())
        except Exception as error:
            self._lost = error
            raise
        self._lost = None
        self._dropping = weakref.finalize(self, _close, opened)
        self._dropping.atexit = False
        return opened.catalogue.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        if self._opened is None:
            self.read_metadata()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        opened = self._open_one()
        return replace(plan, storage_data=(opened.folder.name, opened.attempt))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        found = {plan.storage_data for plan in plans}
        if len(found) > 1:
            names = ", ".join(sorted(f"{folder} ({attempt})" for folder, attempt in found))
            raise Conflict(
                f"ranks looked for the latest checkpoint in {self._run.checkpoints.where} while one was committed, and "
                f"found {names}: load again, or say which step"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        opened = self._open_one()
        try:
            self._fill(opened, plan, planner)
            self._give_values(opened, plan, planner)
        except CheckpointDamaged as error:
            if self._wait(self._run.store.is_committed(opened.folder)):
                raise
            raise gone(self._run.store, opened.folder) from error
        finally:
            self._close()
        if self._resume:
            self._run.loaded(opened.folder.step, self._seen)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return is_step(checkpoint_id)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        which = "the latest checkpoint" if self._step is None else f"step {self._step}"
        return background.run(watched(work, f"loading {which} of {self._run.checkpoints.where}", self._timeout))

    async def _open(self) -> Opened:
        for _ in range(LATEST_TRIES if self._step is None else 0):
            with suppress(CheckpointGone):
                return await self._open_now()
        return await self._open_now()

    async def _open_now(self) -> Opened:
        checkpoints = self._run.checkpoints
        self._seen = await checkpoints.survey()
        return await self._open_at(await checkpoints.find_in(self._seen, self._step))

    async def _open_at(self, folder: Folder) -> Opened:
        store, where = self._run.store, f"{self._run.checkpoints.where}/{folder.name}"
        async with AsyncExitStack() as mark:
            await mark.enter_async_context(marked(store, folder))
            whole = await store.whole(folder, _own_rank() if self._rank is None else self._rank)
            if whole.kind == BYTES:
                raise InvalidInput(f"{where} is a state of bytes: load it with CheckpointManager")
            attempt = (await store.metadata(folder)).attempt
            return Opened(folder, attempt, whole, Catalogue(whole, where), mark.pop_all())

    def _open_one(self) -> Opened:
        if self._opened is None:
            raise InvalidInput("the checkpoint is not open any more: each load begins with read_metadata()")
        return self._opened

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            self._dropping.detach()
            background.run_while_alive(opened.mark.aclose)

    # -- tensors -----------------------------------------------------------------------------------------------------

    def _fill(self, opened: Opened, plan: LoadPlan, planner: LoadPlanner) -> None:
        slices = list(_slices(opened, plan, planner))
        files = {chunk.file for each in slices for piece in _pieces(opened, each) for chunk in piece.chunks}
        self._wait(check_lengths(self._run.store, [opened.whole.files[number] for number in sorted(files)]))
        torch_arrays = framework_named("torch")
        here: list[tuple[Slice, Block]] = []
        elsewhere: list[Slice] = []
        for each in slices:
            is_alike = not each.leaf.is_view and torch_arrays.outline(each.target)[0] == each.leaf.dtype
            memory = torch_arrays.memory(each.target) if is_alike else None
            if memory is None:
                elsewhere.append(each)
            else:
                here.append((each, memory))
        try:
            self._read(opened, here)
            for batch in _batches(elsewhere):
                self._read_and_copy(opened, batch)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{error}. What it was loaded into is a mixture now: do not train on it") from error
        for each in slices:
            planner.commit_tensor(each.item, each.target)

    def _read(self, opened: Opened, wanted: Iterable[tuple[Slice, Block]]) -> None:
        wishes: list[Wish | Placed] = []
        for (_, leaf, box, _), memory in wanted:
            told, boxes = opened.whole.tensors[leaf.tensor], opened.whole.boxes.get(leaf.tensor)
            wishes += wishes_for(told, boxes, box, memory)
        self._wait(ChunkReader(self._run.store, opened.whole.files, lambda count: None).read(once(wishes)))

    def _read_and_copy(self, opened: Opened, batch: list[Slice]) -> None:
        """Through memory of our own: to a device, to where gaps are, or as another type."""
        memory = [memory_for(each.leaf.dtype, each.box) for each in batch]
        self._read(opened, [pair for pair in zip(batch, memory, strict=True) if not pair[0].leaf.is_view])
        for each, block in zip(batch, memory, strict=True):
            if each.leaf.is_view:
                _cut(self._whole(opened, each.leaf.number), each, block)
            found = framework_named("torch").make(each.leaf.dtype, each.box.shape, block)
            with torch.no_grad():
                each.target.copy_(found)

    def _whole(self, opened: Opened, number: int) -> Block:
        return self._wait(LeafSupply(self._run.store, opened.whole, opened.catalogue.leaves).whole(number))

    # -- values ------------------------------------------------------------------------------------------------------

    def _give_values(self, opened: Opened, plan: LoadPlan, planner: LoadPlanner) -> None:
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                node = opened.catalogue.entries[item.storage_index.fqn].node
                arrays = {number: self._array(opened, number, kind) for number, kind in array_kinds(node).items()}
                planner.load_bytes(item, pickled(node, arrays))

    def _array(self, opened: Opened, number: int, kind: str) -> Any:
        leaf = opened.catalogue.leaves[number]
        package = framework_named("torch" if kind in TENSORS else "numpy")
        return package.make(leaf.dtype, leaf.shape, self._whole(opened, number))


def _slices(opened: Opened, plan: LoadPlan, planner: LoadPlanner) -> Iterator[Slice]:
    for item in plan.items:
        if item.type == LoadItemType.BYTE_IO:
            continue
        leaf = opened.catalogue.entries[item.storage_index.fqn].tensor
        if leaf is None:
            raise InvalidInput(f"{item.storage_index.fqn} is no tensor in the checkpoint, and the planner wants one")
        box = Box(tuple(item.storage_offsets), tuple(item.lengths))
        if not box.lies_in(leaf.shape):
            raise InvalidInput(f"{item.storage_index.fqn}: the planner wants {box}, which is not within {leaf.shape}")
        target = planner.resolve_tensor(item).detach()
        if tuple(target.shape) != box.shape:
            raise InvalidInput(f"{item.storage_index.fqn}: {list(box.shape)} do not fit into {list(target.shape)}")
        if box.size:
            yield Slice(item, leaf, box, target)


def _pieces(opened: Opened, each: Slice) -> Iterator[Any]:
    """Those of a tensor that hold something of a slice."""
    for piece in pieces_of(opened.whole, each.leaf.tensor):
        at = piece.at if piece.at is not None else (0,) * len(piece.shape)
        if each.leaf.is_view or Box(at, piece.shape).meet(each.box) is not None:
            yield piece


def _batches(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    batch: list[Slice] = []
    size = 0
    for each in slices:
        needs = each.target.nbytes
        if batch and size + needs > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += needs
    if batch:
        yield batch


def _cut(whole: Block, each: Slice, block: Block) -> None:
    item = len(block) // each.box.size
    elements = whole.reshape((*each.leaf.shape, item))[each.box.within(Box.whole(each.leaf.shape))]
    block[:] = np.ascontiguousarray(elements).reshape(-1)


def _close(opened: Opened) -> None:
    with suppress(RuntimeError):  # Python ends
        asyncio.run_coroutine_threadsafe(opened.mark.aclose(), background.loop())


def _own_rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
