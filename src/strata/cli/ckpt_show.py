"""`strata ckpt show`: one checkpoint, its tensors and its plain values."""

import asyncio
import json
from typing import Annotated, Any, NamedTuple

import typer

from strata.checkpoint.leaves import Leaf, leaves_of
from strata.checkpoint.manifest import Part
from strata.checkpoint.matching import chooser
from strata.checkpoint.overview import LATEST, Listed
from strata.checkpoint.saving import TREE
from strata.checkpoint.skeleton import array_kinds, plain_values, shown
from strata.checkpoint.whole import Whole, number_of_tensors, own_numbers, pieces_of, whole_of
from strata.cli.ckpt_look import document, metrics_of
from strata.cli.ckpt_place import AsJson, Job, OneStep, Url, opened
from strata.cli.drawing import Terminal, Text, new_table, open_console
from strata.cli.output import say_json
from strata.errors import CheckpointDamaged
from strata.texts import counted, moment, printable, readable_bytes, some_of

VALUE_LENGTH = 100
BYTES_STATE = "(the bytes)"
OWN = "each rank's own"
"""What is shown of it is what the lowest rank has."""

Keys = Annotated[
    list[str] | None,
    typer.Option("--keys", "-k", metavar="PATTERN", help="Only names like model/*; may be given again."),
]


class Shown(NamedTuple):
    """A checkpoint, and the manifests of its parts."""

    listed: Listed
    where: str
    parts: list[Part]
    whole: Whole


def show(
    url: Url,
    step: OneStep = LATEST,
    keys: Keys = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many tensors, and so many values.")] = 1000,
    job: Job = None,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint holds: tensors, plain values, files. Nothing but its manifests is read."""
    found = asyncio.run(_read(url, step, job))
    tensors = tensor_rows(found.whole)
    values = value_rows(found.whole)
    if keys:
        wants = chooser([row["name"] for row in [*tensors, *values]], keys)
        tensors = [row for row in tensors if wants(row["name"])]
        values = [row for row in values if wants(row["name"])]
    if as_json:
        say_json(_document(found, tensors, values))
        return
    console = open_console()
    _draw_head(console, found)
    _draw_tensors(console, found, tensors, limit)
    _draw_values(console, values, limit)


async def _read(url: str, step: str, job: str | None) -> Shown:
    async with opened(url, job) as found:
        listed = await found.one(step)
        if listed.metadata is None:
            raise CheckpointDamaged(listed.damage)
        parts = await found.checkpoints.store.parts(listed.folder)
        where = f"{found.checkpoints.where}/{listed.folder.name}"
        return Shown(listed, where, parts, whole_of(parts, parts[0].rank, where))


def tensor_rows(part: Whole) -> list[dict[str, Any]]:
    """One for each array of the state, as a document for programs."""
    kinds = array_kinds(part.skeleton) if part.kind == TREE else {}
    own = own_numbers(part.skeleton)
    return [_tensor_row(part, leaf, kinds.get(leaf.number, part.kind), leaf.number in own) for leaf in leaves_of(part)]


def value_rows(part: Whole) -> list[dict[str, Any]]:
    """One for each plain value."""
    common = plain_values(part.skeleton, common=True)
    return [
        {"name": name, "value": shown(node), "own": name not in common}
        for name, node in plain_values(part.skeleton).items()
    ]


def _tensor_row(part: Whole, leaf: Leaf, kind: str, own: bool) -> dict[str, Any]:
    tensor = part.tensors[leaf.tensor]
    return {
        "name": leaf.name,
        "kind": kind,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "bytes": leaf.size,
        "tied_to": tensor.name if tensor.name != leaf.name else None,
        "is_view": leaf.is_view,
        "own": own,
        "files": [
            part.files[each].path
            for each in sorted({chunk.file for piece in pieces_of(part, leaf.tensor) for chunk in piece.chunks})
        ],
    }


def _document(found: Shown, tensors: list[dict[str, Any]], values: list[dict[str, Any]]) -> dict[str, Any]:
    metadata = found.listed.metadata
    assert metadata is not None
    told = document(found.listed) | {"url": found.where, "job": metadata.job, "strata": metadata.strata}
    return told | {
        "attempt": metadata.attempt,
        "tensors": tensors,
        "values": values,
        "own_elsewhere": found.whole.others,
        "files": [
            {"path": file.path, "rank": part.rank, "bytes": file.size, "own": _is_own(found, file.path)}
            for part in found.parts
            for file in part.files
        ],
    }


def _is_own(found: Shown, path: str) -> bool:
    return path.startswith(f"{found.listed.folder.name}/")


# -- words and pictures ----------------------------------------------------------------------------------------------


def _draw_head(console: Terminal, found: Shown) -> None:
    listed, metadata = found.listed, found.listed.metadata
    assert metadata is not None
    console.print(Text(f"step {listed.label} of job {metadata.job}", style="bold"))
    when = moment(metadata.unix_seconds)
    lines = [
        f"in {found.where}",
        f"saved {when} by Strata {metadata.strata}, epoch {metadata.epoch}, term {metadata.term}",
        _amounts(found),
    ]
    if found.whole.others:
        lines.append(f"other ranks have something of their own in {some_of(found.whole.others)}")
    if metadata.metrics:
        lines.append(f"metrics: {metrics_of(listed)}")
    notes = (("the latest", listed.is_latest), ("pinned", listed.is_pinned), ("left behind", not listed.on_line))
    if any(holds for _, holds in notes):
        lines.append(", ".join(word for word, holds in notes if holds))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _amounts(found: Shown) -> str:
    listed = found.listed
    told = f"{readable_bytes(listed.stored_bytes)} in {counted(number_of_tensors(found.parts), 'tensor')}"
    referred = listed.stored_bytes - listed.written_bytes
    if referred:
        told += f": {readable_bytes(listed.written_bytes)} written, {readable_bytes(referred)} referred to"
    return told + (f", of {listed.ranks} ranks" if listed.ranks > 1 else "")


def _draw_tensors(console: Terminal, found: Shown, tensors: list[dict[str, Any]], limit: int) -> None:
    numbers = {path: n for n, path in enumerate(dict.fromkeys(f.path for part in found.parts for f in part.files))}
    table = new_table("tensor", "dtype", "shape", "bytes>", "tied to", "files", "")
    for row in tensors[:limit]:
        tied = "" if row["tied_to"] is None else row["tied_to"]
        table.add_row(
            Text(row["name"] or BYTES_STATE),
            Text(row["dtype"]),
            Text("x".join(map(str, row["shape"])) or "scalar"),
            readable_bytes(row["bytes"]),
            Text(("within " if row["is_view"] and tied else "") + tied),
            " ".join(str(numbers[path]) for path in row["files"]),
            OWN if row["own"] else "",
        )
    if tensors:
        console.print("")
        console.print(table)
        _tell_limit(console, len(tensors), limit, "tensor")
    files = new_table("file>", "path", "bytes>", "")
    for part in found.parts:
        for file in part.files:
            note = "" if _is_own(found, file.path) else f"referred to, of {file.path.partition('/')[0]}"
            files.add_row(str(numbers[file.path]), Text(file.path), readable_bytes(file.size), Text(note))
    if numbers:
        console.print("")
        console.print(files)


def _draw_values(console: Terminal, values: list[dict[str, Any]], limit: int) -> None:
    if not values or all(row["value"] is None and not row["name"] for row in values):
        return
    table = new_table("value", "", "")
    for row in values[:limit]:
        text = printable(json.dumps(row["value"], ensure_ascii=False))
        table.add_row(
            Text(row["name"] or "(the state)"),
            Text(text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"),
            OWN if row["own"] else "",
        )
    console.print("")
    console.print(table)
    _tell_limit(console, len(values), limit, "value")


def _tell_limit(console: Terminal, count: int, limit: int, noun: str) -> None:
    if count > limit:
        console.print(f"{counted(count - limit, noun)} more: see --limit and --keys", style="dim")
