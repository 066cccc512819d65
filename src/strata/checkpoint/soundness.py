"""Whether a part's manifest can be true, asked once, before anything is allocated or read for it or built from it.

A digest tells that a manifest is the one that was named, not that whoever wrote it meant well. The law: every number in
it that says where or how much is within what the files hold, so that nothing is read from elsewhere, and no memory is
taken for what is not there.
"""

from collections.abc import Sequence
from math import prod

from strata.checkpoint.boxes import Box
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks.base import span
from strata.checkpoint.manifest import BYTES, CHUNK_BYTES, TREE, File, Leaf, Part, Spread, Tensor, Tied
from strata.checkpoint.ties import SHIFT
from strata.checkpoint.uncollected import uncollected
from strata.checkpoint.wellformed import Nonsense, check_skeleton
from strata.errors import CheckpointDamaged, InvalidInput
from strata.storage.keys import check_key

MOST_DIMENSIONS = 64
"""No package has arrays of more."""
EXPANDED_BYTES = 64 << 20
EXPANDED_TIMES = 16
"""Elements of a view may be one in memory, as `expand` makes them. Written out one by one such a view may take the
first or, of the bytes that are stored for it, the second, whichever is more: masks and positions that are expanded over
a batch or heads are within that, and a file of a few bytes cannot ask for all memory."""


def check_sound(part: Part, where: str) -> None:
    """CheckpointDamaged, naming the manifest and what in it cannot be."""
    try:
        with uncollected():
            _check_files(part.files)
            sizes = _tensor_sizes(part.tensors, [file.size for file in part.files])
            _check_total(sum(sizes), part.files)
            _check_leaves(part.leaves, part.tensors, sizes)
    except (Nonsense, InvalidInput) as error:
        raise CheckpointDamaged(f"{where} cannot be true: {error}") from error
    try:
        _check_state(part, sizes)
    except Nonsense as error:  # what a newer version may know is no damage
        raise CheckpointDamaged(f"{where} cannot be true: {error}") from error


def check_together(parts: Sequence[Part], where: str) -> None:
    """Of a checkpoint. CheckpointDamaged if two parts have the same file: no byte of it is read for both."""
    seen: dict[str, int] = {}
    for part in parts:
        for file in part.files:
            other = seen.setdefault(file.path, part.rank)
            if other != part.rank:
                raise CheckpointDamaged(
                    f"{where} cannot be true: ranks {other} and {part.rank} both have the file {file.path!r}"
                )


def check_expanded(name: str, size: int, stored: int) -> None:
    """InvalidInput for a view that cannot be written out: to be asked before memory is taken for that."""
    if size > max(EXPANDED_BYTES, EXPANDED_TIMES * stored):
        raise InvalidInput(
            f"{name!r} has {size:,} bytes, and {stored:,} are stored, since many of its elements are one in memory: it "
            "is not written out. Leave it out; load() makes a view of it, and load_slice gives a part"
        )


def _check_state(part: Part, sizes: Sequence[int]) -> None:
    if part.kind == BYTES:
        if part.skeleton is not None or part.leaves != [0] or len(part.tensors) != 1:
            raise Nonsense(f"{len(part.tensors)} tensors are one state of bytes")
        return
    if part.kind != TREE:
        raise Nonsense(f"a state is no {part.kind[:40]!r}")
    for number in check_skeleton(part.skeleton, len(part.leaves)):
        leaf = part.leaves[number]
        if isinstance(leaf, Tied) and leaf.offset is not None and size_of(leaf) > sizes[leaf.tensor]:
            raise Nonsense(f"{leaf.name!r} has {size_of(leaf):,} bytes, and lies in {sizes[leaf.tensor]:,}")


def _check_files(files: Sequence[File]) -> None:
    for file in files:
        check_key(file.path)
        if not 0 <= file.header_size <= file.size:
            raise Nonsense(f"the file {file.path!r} has {file.size:,} bytes and a header of {file.header_size:,}")


def _check_total(size: int, files: Sequence[File]) -> None:
    """No byte of a file is part of two tensors: else a small file could be read a thousand times over."""
    if len({file.path for file in files}) < len(files):
        raise Nonsense("it names a file twice")
    most = sum(file.size - file.header_size for file in files)
    if size > most:
        raise Nonsense(f"its tensors have {size:,} bytes, and its files {most:,}")


def _tensor_sizes(tensors: Sequence[Tensor], file_sizes: Sequence[int]) -> list[int]:
    """Their bytes. The chunks of a tensor are as long as its shape asks for, and lie within their files."""
    count, found = len(file_sizes), []
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    for tensor in tensors:
        outline = tensor.dtype, tensor.shape
        size = known.get(outline, -1)
        if size < 0:
            size = known[outline] = _checked_size(tensor)
        held = 0
        for chunk in tensor.chunks:
            file, at, length, left = chunk.file, chunk.at, chunk.size, size - held
            if length != (left if left < CHUNK_BYTES else CHUNK_BYTES):
                raise Nonsense(f"tensor {tensor.name!r} of {size:,} bytes has {length:,} in a chunk at {held:,}")
            if not (0 <= file < count and 0 <= at < at + length <= file_sizes[file]):
                raise Nonsense(f"tensor {tensor.name!r} has {length:,} bytes at {at:,} of no such file")
            held += length
        if held != size:
            raise Nonsense(f"tensor {tensor.name!r} has {held:,} bytes, and a shape of {list(tensor.shape)}")
        if not 0 <= tensor.shift < SHIFT:
            raise Nonsense(f"tensor {tensor.name!r} is shifted by {tensor.shift}")
        found.append(size)
    return found


def size_of(array: Tensor | Tied | Spread) -> int:
    """In bytes, each of its elements for itself."""
    return dtype_of(array.dtype).bytes * prod(array.shape)


def _checked_size(tensor: Tensor | Spread) -> int:
    if len(tensor.shape) > MOST_DIMENSIONS:
        raise Nonsense(f"tensor {tensor.name!r} has {len(tensor.shape):,} dimensions")
    if min(tensor.shape, default=0) < 0:
        raise Nonsense(f"tensor {tensor.name!r} has a shape of {list(tensor.shape)}")
    return size_of(tensor)


def _check_leaves(leaves: Sequence[Leaf], tensors: Sequence[Tensor], sizes: Sequence[int]) -> None:
    numbers = [leaf for leaf in leaves if type(leaf) is int]
    for number in (min(numbers, default=0), max(numbers, default=0)):
        if numbers and not 0 <= number < len(sizes):
            raise Nonsense(f"an array is tensor {number} of {len(sizes)}")
    lists: dict[int, list[int]] = {}
    for leaf in leaves if len(numbers) < len(leaves) else ():
        if isinstance(leaf, Tied):
            _check_tied(leaf, sizes)
        elif isinstance(leaf, Spread):
            _check_spread(leaf, tensors, lists)


def _check_spread(leaf: Spread, tensors: Sequence[Tensor], lists: dict[int, list[int]]) -> None:
    """Each of its pieces is one, and of no other array, but for one that is the same: else a few could be put together
    in a thousand ways. Whether they are all of it, only those who have all parts can say. `lists` are those before."""
    _checked_size(leaf)
    if leaf.tensors and leaf.tensors == lists.get(leaf.tensors[0]):
        return
    for number in leaf.tensors:
        if not 0 <= number < len(tensors):
            raise Nonsense(f"{leaf.name!r} has tensor {number} of {len(tensors)}")
        if number in lists:
            raise Nonsense(f"tensor {number} is a piece of {leaf.name!r}, and of something else")
        lists[number] = leaf.tensors
        piece = tensors[number]
        at = piece.at if piece.at is not None else (0,) * len(piece.shape)
        if piece.dtype != leaf.dtype or not Box(at, piece.shape).lies_in(leaf.shape):
            raise Nonsense(f"tensor {number} is no piece of {leaf.name!r}")


def _check_tied(leaf: Tied, sizes: Sequence[int]) -> None:
    if not 0 <= leaf.tensor < len(sizes):
        raise Nonsense(f"{leaf.name!r} is tensor {leaf.tensor} of {len(sizes)}")
    if leaf.offset is None:
        return
    if len(leaf.shape) != len(leaf.strides) or min(leaf.shape, default=1) < 1:
        raise Nonsense(f"{leaf.name!r} has a shape of {list(leaf.shape)} and strides of {list(leaf.strides)}")
    first, last = span(leaf.shape, leaf.strides, dtype_of(leaf.dtype).bytes)
    if leaf.offset + first < 0 or leaf.offset + last > sizes[leaf.tensor]:
        raise Nonsense(f"{leaf.name!r} lies outside of tensor {leaf.tensor}")
