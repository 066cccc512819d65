"""Which data it is: one short text for all files of a dataset, the same for a copy of them elsewhere.

    {whole}.{columns}.{files}.{groups}

    whole    32 hex digits, of everything: datasets that have the same are taken for the same
    columns  8 hex digits, of the columns alone
    files    how many there are
    groups   4 hex digits for each run of files, of which there are at most 48: where the whole differs, they say where

Of each file it has the name, the size, the rows and the seal (`formats.base.FileIndex`), and nothing of when it was
written: a copy has another time.
"""

import json
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from strata.core.shapes import MAX_TEXT
from strata.data.schemas import told_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from strata.data.formats.base import Numbers
    from strata.data.index import DatasetIndex, FileTable

WHOLE_CHARS = 32
MAX_GROUPS = 48
GROUP_CHARS = 4

UNKNOWN = "their names, contents, rows or columns differ"


class Difference(NamedTuple):
    """In what files are others than they were: the end of a sentence. The file, and its samples, where that is one."""

    how: str
    file: str | None = None
    samples: tuple[int, int] | None = None


def fingerprint_of(schema: "pa.Schema", files: "FileTable", rows: "Numbers") -> str:
    columns = blake2b(digest_size=16)
    for field in schema:
        columns.update(f"{len(field.name)} {field.name} {field.type}\n".encode())
    count = len(rows)
    bounds = _bounds(count)
    groups = [_group(files, rows, *each) for each in pairwise(bounds)]
    whole = blake2b(b"strata-dataset-2" + columns.digest() + b"".join(groups), digest_size=WHOLE_CHARS // 2)
    told = "".join(each.hex()[:GROUP_CHARS] for each in groups)
    return f"{whole.hexdigest()}.{columns.hexdigest()[:8]}.{count}.{told}"


def _bounds(files: int) -> list[int]:
    groups = min(files, MAX_GROUPS)
    return [files * number // groups for number in range(groups + 1)] if groups else [0]


def _group(files: "FileTable", rows: "Numbers", start: int, end: int) -> bytes:
    digest = blake2b(digest_size=16)
    names = files.names[start:end].to_pylist()
    numbers = (files.root, rows, files.sizes, files.seals)
    for name, *each in zip(names, *(column[start:end].tolist() for column in numbers), strict=True):
        text = name.encode()
        digest.update(b"%d " % len(text) + text + b" %d %d %d %d\n" % tuple(each))
    return digest.digest()


def whole(fingerprint: str) -> str:
    """What is compared of it, and what names it where a short name is wanted."""
    return fingerprint[:WHOLE_CHARS]


def columns_told(schema: "pa.Schema") -> str:
    """Names and types, to be kept with a registration; empty if they are too many for that."""
    told = json.dumps({field.name: str(field.type) for field in schema}, ensure_ascii=False)
    return told if len(told) <= MAX_TEXT else ""


def difference(then: str, index: "DatasetIndex", columns_then: str = "") -> Difference | None:
    """In what the files of an index are others than those that had this fingerprint, as far as it tells; None: in
    nothing. `columns_then`: what `columns_told` told of them."""
    now = index.fingerprint
    if whole(then) == whole(now):
        return None
    ours, theirs = now.split("."), then.split(".")
    if len(theirs) != len(ours):
        return Difference(UNKNOWN)
    if ours[1] != theirs[1]:
        columns = _columns(columns_then, columns_told(index.schema))
        return Difference(f"their columns differ{columns}")
    if ours[2] != theirs[2]:
        return Difference(f"there were {theirs[2]} of them, and are {ours[2]}")
    return _first_group(theirs[3], ours[3], index) or Difference(UNKNOWN)


def _columns(then: str, now: str) -> str:
    if not then or not now:
        return ""
    told = told_columns(json.loads(then), json.loads(now))
    return f": {told}" if told else " in their order"


def _first_group(then: str, now: str, index: "DatasetIndex") -> Difference | None:
    bounds = _bounds(index.files)
    for number, (start, end) in enumerate(pairwise(bounds)):
        place = slice(number * GROUP_CHARS, (number + 1) * GROUP_CHARS)
        if then[place] != now[place]:
            return _of_files(index, start, end)
    return None


def _of_files(index: "DatasetIndex", start: int, end: int) -> Difference:
    first, last = index.file(start).path, index.file(end - 1).path
    samples = index.samples_of_files(start, end)
    told = f"samples {samples[0]} to {samples[1] - 1}" if samples[1] > samples[0] else "no samples"
    what = "its name, size, rows or contents differ"
    if end == start + 1:
        return Difference(f"{first}, which has {told}, is not what was there ({what})", first, samples)
    return Difference(
        f"of the {end - start} files from {first} to {last}, which have {told}, at least one is not what was there "
        f"({what})",
        None,
        samples,
    )
