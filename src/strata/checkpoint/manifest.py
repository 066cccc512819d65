"""What a checkpoint says of itself: `metadata.json` for the whole, and a part manifest for each rank.

    metadata.json                 written last: its presence is the commit. Names each part's manifest, by digest.
    part-0-<attempt>.json         the skeleton of a rank's state, its tensors, and where each of their chunks lies

Every byte is covered: chunks by digests in the part manifest, that by a digest in `metadata.json`, and `metadata.json`
by one of its own, which is the last of its fields in every version. A reader that does not know the format's version
says so, and reads nothing.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import xxhash

from strata.core.events import Position
from strata.errors import CheckpointDamaged, InvalidInput

FORMAT = 1
METADATA = "metadata.json"
BYTES, TREE = "bytes", "tree"
"""What the state of a part is."""
DIGEST = "xxh3-128:"
CHUNK_BYTES = 8 << 20
MOST_TERMS = 10**9
"""The names of folders have room for so many; see `lineage`."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading JSON may raise: the last, for what goes on for a thousand levels."""
_OWN_DIGEST = re.compile(rb'"digest": ?"([^"]*)"\n?}\n\Z')
_NO_NUMBERS = ("nan", "inf", "-inf")


def digest_of(data: Any) -> str:
    """Of any contiguous buffer."""
    return DIGEST + xxhash.xxh3_128_hexdigest(data)


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some bytes of a tensor, those after the chunk before: in which file of the part, from where, and their digest."""

    file: int
    at: int
    size: int
    digest: str


class Tied(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="is", tag="tied"):
    """A name for a tensor that is stored under another; with `offset` and `strides` for one that lies within it."""

    name: str
    tensor: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    offset: int | None = None
    strides: tuple[int, ...] = ()


class Spread(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="is", tag="spread"):
    """An array that ranks hold together, or that another rank stores: this part has these tensors of it, each a piece,
    and other parts have the rest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensors: list[int] = []


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An array, or a piece of one, which begins `at` this place of it; or bytes in which several arrays lie: those
    begin `shift` bytes behind a multiple of 64."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: list[Chunk]
    shift: int = 0
    at: tuple[int, ...] | None = None


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of tensors, by its path below the job's `checkpoints` folder, and the digest of what precedes them."""

    path: str
    size: int
    header_size: int = 0
    header_digest: str = ""


Leaf: TypeAlias = int | Tied | Spread
"""What an array of a skeleton is: a tensor, by its number, or something else that has a name of its own."""


class Part(msgspec.Struct, frozen=True):
    """One rank's share of a checkpoint. `leaves` says of each array in the skeleton which tensor it is."""

    format: int
    rank: int
    attempt: str
    kind: str
    skeleton: Any
    leaves: list[Leaf]
    tensors: list[Tensor]
    files: list[File]
    data: dict[str, Position] = {}
    """Where this rank was in each dataset; see `datapositions`."""


class PartRef(msgspec.Struct, frozen=True):
    """Where a part's manifest is, and what it must be."""

    rank: int
    path: str
    size: int
    digest: str
    stored_bytes: int
    written_bytes: int


class Metadata(msgspec.Struct, frozen=True):
    """A committed checkpoint. `term` counts the starts of its writer; see `lineage`."""

    format: int
    job: str
    step: int
    epoch: int
    term: int
    attempt: str
    unix_seconds: float
    world_size: int
    metrics: dict[str, float | str]
    """Numbers. Those that JSON has none for are written as text: nan, inf, -inf."""
    parts: list[PartRef]
    references: list[str]
    strata: str
    data: dict[str, Position] = {}
    """Where the job was in each dataset."""
    digest: str = ""


def encode_part(part: Part) -> bytes:
    return msgspec.json.encode(part) + b"\n"


def decode_part(data: Any, where: str) -> Part:
    """Its digest has been checked: what is wrong now is another version's."""
    try:
        part = msgspec.json.decode(data, type=Part)
    except UNREADABLE as error:
        check_format(data, where, FORMAT)
        raise CheckpointDamaged(
            f"{where} is no part manifest that this version of Strata understands: {error}"
        ) from error
    if part.format != FORMAT:
        check_format(data, where, FORMAT)
    return part


def decode_files(data: Any, where: str) -> list[File]:
    """The files that a part is made of, without the rest."""
    check_format(data, where, FORMAT)
    try:
        return msgspec.json.decode(data, type=_Filed).files
    except UNREADABLE as error:
        raise CheckpointDamaged(f"{where} does not say which files it is made of: {error}") from error


def encode_metadata(metadata: Metadata) -> bytes:
    """With its own digest in it, taken while that is empty."""
    bare = msgspec.structs.replace(metadata, metrics=written_metrics(metadata.metrics), digest="")
    whole = msgspec.structs.replace(bare, digest=digest_of(_pretty(bare)))
    return _pretty(whole)


def decode_metadata(data: bytes, where: str) -> Metadata:
    """Raises CheckpointDamaged, naming the file."""
    check_own_digest(data, where)
    check_format(data, where, FORMAT)
    try:
        found = msgspec.json.decode(data, type=Metadata)
    except UNREADABLE as error:
        raise CheckpointDamaged(f"{where} is damaged: {error}") from error
    if not 0 <= found.term < MOST_TERMS:
        raise CheckpointDamaged(f"{where} is damaged: no writer has the term {found.term}")
    if not _are_all(found.parts, found.world_size):
        raise CheckpointDamaged(
            f"{where} is damaged: its {len(found.parts):,} parts are not one of each of {found.world_size:,} ranks"
        )
    for name, value in found.metrics.items():
        if isinstance(value, str) and value not in _NO_NUMBERS:
            raise CheckpointDamaged(f"{where} is damaged: the metric {name!r} is {value[:40]!r}")
    return msgspec.structs.replace(found, metrics={name: float(value) for name, value in found.metrics.items()})


def _are_all(parts: list[PartRef], world_size: int) -> bool:
    """One of each rank at most: one that had nothing to store may have none."""
    ranks = [part.rank for part in parts]
    return len(set(ranks)) == len(ranks) and all(0 <= rank < world_size for rank in ranks) and bool(ranks)


def check_own_digest(data: bytes, where: str) -> None:
    """Of a file that ends with a digest of itself. Asked first of all: a version that is none is damage, too."""
    found = _OWN_DIGEST.search(data)
    if found is None or digest_of(data[: found.start(1)] + data[found.end(1) :]).encode() != found[1]:
        raise CheckpointDamaged(f"{where} is damaged: its digest does not match what it says")


def _pretty(metadata: Metadata) -> bytes:
    return msgspec.json.format(msgspec.json.encode(metadata)) + b"\n"


def written_metrics(metrics: Mapping[str, float | str]) -> dict[str, float | str]:
    """As JSON has them."""
    return {name: value if math.isfinite(float(value)) else str(value) for name, value in metrics.items()}


class _Versioned(msgspec.Struct):
    format: int


class _Filed(msgspec.Struct):
    files: list[File]


def check_format(data: Any, where: str, newest: int) -> None:
    """InvalidInput for a version that this one does not read."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).format
    except UNREADABLE as error:
        raise CheckpointDamaged(f"{where} is damaged: {error}") from error
    if version > newest:
        raise InvalidInput(f"{where} has format {version}; this version of Strata reads up to {newest}: upgrade it")
