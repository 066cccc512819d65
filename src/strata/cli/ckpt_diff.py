"""`strata ckpt diff`: how two checkpoints differ."""

import asyncio
import json
from typing import Annotated, Any

import typer

from strata.checkpoint.differences import (
    ADDED,
    CHANGED,
    REMOVED,
    SAME,
    Contents,
    Differences,
    TensorChange,
    compare,
    read_contents,
)
from strata.checkpoint.manifest import written_metrics
from strata.checkpoint.overview import LATEST, parse_step
from strata.checkpoint.skeleton import shown
from strata.cli.ckpt_place import AsJson, Job, opened
from strata.cli.drawing import Terminal, Text, new_table, open_console
from strata.cli.output import say_json
from strata.errors import InvalidInput
from strata.texts import counted, printable, readable_bytes

VALUE_LENGTH = 60
_SIGNS = {ADDED: ("+", "green"), REMOVED: ("-", "red"), CHANGED: ("~", "yellow"), SAME: ("=", "dim")}


def diff(
    first: Annotated[str, typer.Argument(metavar="URL", help="Where the checkpoints are; or the first of two URLs.")],
    second: Annotated[str, typer.Argument(metavar="A", help="The earlier step; or the second of two URLs.")],
    third: Annotated[
        str | None, typer.Argument(metavar="B", help="The later step; else the latest.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show tensors that are the same, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many tensors, and so many values.")] = 1000,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 if anything differs.")] = False,
    job: Job = None,
    as_json: AsJson = False,
) -> None:
    """Compare two steps, or the checkpoints at two URLs, by the digests in their manifests.

    No tensor is read. What differs in part is told by how many bytes, to a chunk of 8 MiB.
    """
    before, after = asyncio.run(_read(first, second, third, job))
    found = compare(before, after)
    if as_json:
        say_json(_document(before, after, found))
    else:
        _draw(before, after, found, everything, limit)
    if exit_code and found:
        raise typer.Exit(1)


async def _read(first: str, second: str, third: str | None, job: str | None) -> tuple[Contents, Contents]:
    if third is not None or _is_step(second):
        sides = (first, second), (first, third or LATEST)
    else:
        sides = (first, LATEST), (second, LATEST)
    return await _contents(*sides[0], job), await _contents(*sides[1], job)


async def _contents(url: str, step: str, job: str | None) -> Contents:
    async with opened(url, job) as found:
        return await read_contents(found.checkpoints.store, (await found.one(step)).folder)


def _is_step(text: str) -> bool:
    if text == LATEST:
        return True
    try:
        parse_step(text)
    except InvalidInput:
        return False
    return True


# -- words and pictures ----------------------------------------------------------------------------------------------


def _document(before: Contents, after: Contents, found: Differences) -> dict[str, Any]:
    return {
        "before": _side(before),
        "after": _side(after),
        "differ": bool(found),
        "totals": {what: {"tensors": found.count(what), "bytes": found.bytes(what)} for what in _SIGNS},
        "lies_in": found.lies_in,
        "tensors": [
            {
                "name": each.name,
                "what": each.what,
                "before": each.before,
                "after": each.after,
                "bytes": each.bytes,
                "changed_bytes": each.changed_bytes,
                "tied": each.is_tied,
            }
            for each in found.tensors
        ],
        "values": [
            {
                "name": each.name,
                "what": each.what,
                "before": shown(each.before),
                "after": shown(each.after),
            }
            for each in found.values
        ],
    }


def _side(contents: Contents) -> dict[str, Any]:
    metadata = contents.metadata
    return {
        "job": metadata.job,
        "step": metadata.step,
        "folder": contents.folder.name,
        "epoch": metadata.epoch,
        "metrics": written_metrics(metadata.metrics),
    }


def _draw(before: Contents, after: Contents, found: Differences, everything: bool, limit: int) -> None:
    console = open_console()
    console.print(Text(f"{_called(before)} → {_called(after)}", style="bold"))
    rows = [each for each in found.tensors if everything or each.what != SAME]
    table = new_table("", "tensor", "type and shape", "bytes>", "changed>")
    for each in rows[:limit]:
        table.add_row(*_row(each))
    if rows:
        console.print(table)
        _tell_limit(console, len(rows), limit, "tensor")
    _draw_values(console, found, limit)
    for line in (*_totals(found), *_places(after, found)):
        console.print(Text(line), soft_wrap=True)


def _called(contents: Contents) -> str:
    return f"step {contents.folder.name.removeprefix('step_')} of job {contents.metadata.job}"


def _row(change: TensorChange) -> list[Text]:
    sign, style = _SIGNS[change.what]
    told = change.after or change.before or ""
    if change.before and change.after and change.before != change.after:
        told = f"{change.before} → {change.after}"
    changed = readable_bytes(change.changed_bytes) if change.what == CHANGED else ""
    return [
        Text(sign, style=style),
        Text(change.name or "(the bytes)"),
        Text(told),
        Text("tied" if change.is_tied else readable_bytes(change.bytes)),
        Text(changed),
    ]


def _draw_values(console: Terminal, found: Differences, limit: int) -> None:
    table = new_table("", "value", "before", "after")
    for each in found.values[:limit]:
        sign, style = _SIGNS[each.what]
        before = "" if each.what == ADDED else _short(each.before)
        after = "" if each.what == REMOVED else _short(each.after)
        table.add_row(Text(sign, style=style), Text(each.name or "(the state)"), Text(before), Text(after))
    if found.values:
        console.print(table)
        _tell_limit(console, len(found.values), limit, "value")


def _short(node: Any) -> str:
    text = printable(json.dumps(shown(node), ensure_ascii=False))
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"


def _totals(found: Differences) -> list[str]:
    told = []
    for what in _SIGNS:
        count = found.count(what)
        if count:
            told.append(f"{counted(count, 'tensor')} {what} ({readable_bytes(found.bytes(what))})")
    told.append(f"{counted(len(found.values), 'value')} differ" if len(found.values) != 1 else "1 value differs")
    return ["; ".join(told)]


def _places(after: Contents, found: Differences) -> list[str]:
    own = after.folder.name
    others = [f"{readable_bytes(size)} in {name}" for name, size in found.lies_in.items() if name != own]
    if not others:
        return []
    return [f"{own} holds {readable_bytes(found.lies_in.get(own, 0))} itself, and refers to {', '.join(others)}"]


def _tell_limit(console: Terminal, count: int, limit: int, noun: str) -> None:
    if count > limit:
        console.print(f"{counted(count - limit, noun)} more: see --limit", style="dim")
