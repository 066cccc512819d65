"""`strata storage`: look at storages, move objects between them, and check that one keeps its promises."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from time import perf_counter
from typing import Annotated

import typer

from strata import background
from strata.cli.drawing import Terminal, Text, progress_bar
from strata.cli.output import confirm, say, say_json, say_json_items
from strata.errors import InvalidInput, StrataError
from strata.storage.backend import ObjectInfo
from strata.storage.blocking import BlockingStorage
from strata.storage.check import OPTIONS, Finding, check
from strata.storage.copy import Tally, copy, nothing_at, read_pieces_blocking, size_of_object
from strata.storage.urls import open_storage, split_object_url
from strata.texts import counted, moment, readable_bytes

REMOVED_AT_ONCE = 1000

app = typer.Typer(
    help="Look at storages, copy between them, and check one. A URL is s3://bucket/prefix, gs://…, az://…, "
    "file:///… or a path.",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(metavar="URL", help="Where: s3://bucket/prefix, gs://…, az://…, or a path.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Everything in the folder, at any depth.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def ls(url: Url, recursive: Recursive = False, as_json: AsJson = False) -> None:
    """List what is in a folder, or one object. Paths are relative to the URL."""
    entries = _entries(url, recursive)
    if as_json:
        say_json_items(map(_document, entries))
    else:
        _print_lines(entries)


@app.command()
def cat(url: Url) -> None:
    """Write an object's bytes to standard output."""
    folder, key = split_object_url(url)
    output = sys.stdout.buffer
    with BlockingStorage(open_storage(folder)) as storage:
        size = background.run(size_of_object(storage.storage, key, url, "name one object in it"))
        for piece in read_pieces_blocking(storage.storage, key, size):
            output.write(piece)
        output.flush()


@app.command()
def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="An object, or with -r a folder.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="The copy; or the folder it goes in: one ending in /, or for an object any folder."
        ),
    ],
    recursive: Recursive = False,
) -> None:
    """Copy an object or a folder between any two storages. Each object appears whole or not at all.

    To repeat an interrupted copy of a folder, run it again.
    """
    if target.startswith("memory://"):
        raise InvalidInput("memory:// ends with this command, and the copy with it: name another target")
    began = perf_counter()
    tally = Tally()
    with progress_bar() as progress:
        bar = progress.add_task("copying", total=None, objects="")

        def watch(now: Tally) -> None:
            nonlocal tally
            tally = now
            of = f"{now.objects:,} of {counted(now.objects_found, 'object')}"
            progress.update(bar, completed=now.bytes, total=now.bytes_found, objects=of)

        try:
            asyncio.run(copy(source, target, recursive=recursive, watch=watch))
        except (StrataError, KeyboardInterrupt):
            if tally.objects:
                say(f"{counted(tally.objects, 'object')} had been copied when this happened:", err=True)
            raise
    seconds = perf_counter() - began
    speed = f" ({readable_bytes(tally.bytes / seconds)}/s)" if seconds >= 0.1 else ""
    say(f"copied {_amount(tally.objects, tally.bytes)} in {seconds:.1f} s{speed}")


@app.command()
def rm(
    url: Url,
    recursive: Recursive = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing a folder.")] = False,
) -> None:
    """Remove an object, or with -r a folder and all in it."""
    folder, key = split_object_url(url)
    if recursive and not key and "://" not in folder:
        raise InvalidInput("the root of the filesystem is not removed")
    with BlockingStorage(open_storage(folder)) as storage:
        if not recursive:
            size = background.run(size_of_object(storage.storage, key, url))
            storage.delete(key)
            say(f"removed {_amount(1, size)}")
            return
        if not yes:
            found = _total(_to_remove(storage, key, url))
            confirm(f"Remove {_amount(*found)} from {url}?")
        removed = _total(_remove(storage, _to_remove(storage, key, url)))
        say(f"removed {_amount(*removed)}")


@app.command("check")
def check_command(url: Url, as_json: AsJson = False) -> None:
    """Try and time all that Strata needs of a storage, in a new folder there that is removed again.

    Ends with 1 if anything failed.
    """
    console = Terminal(soft_wrap=True)
    findings = asyncio.run(_check(url, None if as_json else console))
    ok = all(finding.ok for finding in findings)
    if as_json:
        say_json({"url": url, "ok": ok, "findings": [asdict(one) for one in findings]})
    else:
        failed = counted(sum(finding.ok is False for finding in findings), "step")
        told = Text("everything that Strata needs works here", "green") if ok else Text(f"{failed} failed", "red")
        console.print(told)
    if not ok:
        raise typer.Exit(1)


# -- listings --------------------------------------------------------------------------------------------------------


def _entries(url: str, recursive: bool) -> Iterator[ObjectInfo]:
    with BlockingStorage(open_storage(url)) as storage:
        entries = storage.list_all() if recursive else storage.list_folder()
        first = next(entries, None)
        if first is not None:
            yield first
            yield from entries
    if first is None and not url.endswith("/"):
        yield from _object(url)


def _object(url: str) -> Iterator[ObjectInfo]:
    folder, key = split_object_url(url)
    if not key:
        return
    with BlockingStorage(open_storage(folder)) as storage:
        if storage.exists(key):
            # Only a listing tells when an object was written.
            yield from (entry for entry in storage.list_folder() if entry.path == key)
            return
    raise nothing_at(url)


def _print_lines(entries: Iterator[ObjectInfo]) -> None:
    objects = folders = size = 0
    for entry in entries:
        folders += entry.is_folder
        objects += not entry.is_folder
        size += entry.size
        when = "" if entry.is_folder else moment(entry.modified)
        say(f"{'' if entry.is_folder else readable_bytes(entry.size):>12}  {when:19}  {entry.path}")
    beside = f", {counted(folders, 'folder')}" if folders else ""
    say(f"{readable_bytes(size):>12}  in {counted(objects, 'object')}{beside}")


def _document(entry: ObjectInfo) -> dict[str, object]:
    """An entry for programs."""
    if entry.is_folder:
        return {"path": entry.path, "size": None, "modified": None}
    return {
        "path": entry.path,
        "size": entry.size,
        "modified": datetime.fromtimestamp(entry.modified, UTC).isoformat(),
    }


# -- removing --------------------------------------------------------------------------------------------------------


def _to_remove(storage: BlockingStorage, key: str, url: str) -> Iterator[ObjectInfo]:
    """All under the folder `key`, seen from the one that holds it, so that the folder itself goes as well."""
    entries = storage.list_all(key)
    first = next(entries, None)
    if first is not None:
        yield first
        yield from entries
    elif key and storage.exists(key):
        yield ObjectInfo(key, storage.size(key), 0.0)
    else:
        raise nothing_at(url)


def _remove(storage: BlockingStorage, entries: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    while batch := list(islice(entries, REMOVED_AT_ONCE)):
        storage.delete_many([entry.path for entry in batch])
        yield from batch


def _total(entries: Iterator[ObjectInfo]) -> tuple[int, int]:
    objects = size = 0
    for entry in entries:
        objects += 1
        size += entry.size
    return objects, size


# -- words and pictures ----------------------------------------------------------------------------------------------


def _amount(objects: int, size: int) -> str:
    return f"{counted(objects, 'object')}, {readable_bytes(size)}"


async def _check(url: str, console: Terminal | None) -> list[Finding]:
    findings = []
    async with open_storage(url, options=OPTIONS) as storage, aclosing(check(storage)) as steps:
        async for finding in steps:
            findings.append(finding)
            if console:
                console.print(_drawn(finding))
    return findings


def _drawn(finding: Finding) -> Text:
    mark = Text("✗", "red") if finding.ok is False else Text("!", "yellow") if finding.warns else Text("✓", "green")
    took = f"{finding.seconds:.2f} s" if finding.seconds >= 1 else f"{finding.seconds * 1000:.1f} ms"
    words = " ".join(finding.message.split())  # a store's answer may have lines of its own
    line = mark.append(f" {finding.name:<17} ", "default")
    line.append(f"{took if finding.seconds else '':>9}", "dim default").append(f"  {words}", "default")
    line.rstrip()
    return line
