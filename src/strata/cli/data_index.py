"""`strata data index` and `check`: what a dataset's files hold, kept as one small file, and what changed since."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import numpy as np
import typer

from strata.cli.data_place import Format, Paths, indexed
from strata.cli.drawing import Text, new_table, open_console
from strata.cli.output import say, say_json
from strata.cli.remote import Json
from strata.data.files import File
from strata.data.finding import find_files
from strata.data.fingerprints import whole
from strata.data.formats import format_name
from strata.data.index import Change, DatasetIndex
from strata.data.indexfile import is_index, load_index, save_index
from strata.data.indexing import THREADS
from strata.errors import InvalidInput, NotFound
from strata.storage.urls import locate
from strata.texts import counted, readable_bytes

NAME = ".strata-index"
SHOWN = 20


def index(
    paths: Paths,
    format: Format,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help=f"Where it goes ({NAME} in the folder, or beside the file)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Index the files of a dataset, save that as one small file, and say what was found.

    A Loader that is given `load_index(FILE)` starts without a look into any file.
    """
    if out is None and (len(paths) > 1 or any(sign in paths[0] for sign in "*?[")):
        raise InvalidInput("several paths or a pattern have no place of their own for an index: say where with --out")
    made = indexed(paths, format)
    where = out or _beside(paths[0], is_file=made.files == 1 and made.file(0).path == _plain(paths[0]))
    save_index(made, where)
    if as_json:
        say_json(_document(made) | {"index": where})
        return
    _draw(made)
    say(f"saved as {where}")


def _plain(path: str) -> str:
    """As files say theirs."""
    location = locate(path, None, os.environ)
    if location.scheme == "file":
        return os.path.abspath(os.path.expanduser(location.path))
    return f"{location.scheme}://{location.bucket}/{location.path}".rstrip("/")


def _beside(path: str, *, is_file: bool) -> str:
    """Hidden, so that it is no file of the dataset."""
    whole = _plain(path).rstrip("/")
    folder, _, name = whole.rpartition("/")
    return f"{folder}/.{name}{NAME}" if is_file else f"{whole}/{NAME}"


def _document(made: DatasetIndex) -> dict[str, Any]:
    rows = np.diff(made.first_row)
    return {
        "format": format_name(made.format),
        "files": made.files,
        "empty_files": int((made.file_rows() == 0).sum()),
        "file_bytes": int(made.file_table.sizes.sum()),
        "rows": made.rows,
        "blocks": made.blocks,
        "block_rows": [int(rows.min()), int(rows.max())] if made.blocks else None,
        "block_bytes": [int(made.lengths.min()), int(made.lengths.max())] if made.blocks else None,
        "columns": {field.name: str(field.type) for field in made.schema},
        "fingerprint": made.fingerprint,
    }


def _draw(made: DatasetIndex) -> None:
    console, found = open_console(), _document(made)
    empty = f", {counted(found['empty_files'], 'empty one')} among them" if found["empty_files"] else ""
    size = readable_bytes(found["file_bytes"])
    console.print(f"{found['format']}: {counted(made.rows, 'sample')} in {counted(made.files, 'file')} ({size}){empty}")
    if made.blocks:
        samples = _spread([f"{each:,}" for each in found["block_rows"]])
        sizes = _spread([readable_bytes(each) for each in found["block_bytes"]])
        console.print(f"{counted(made.blocks, 'block')} of {samples} samples, {sizes}", soft_wrap=True)
    table = new_table("column", "type")
    for name, kind in found["columns"].items():
        table.add_row(Text(name), Text(kind))
    if found["columns"]:
        console.print(table)
    console.print(f"fingerprint {whole(made.fingerprint)}")


def _spread(ends: list[str]) -> str:
    """The smallest and the largest, once if they are the same."""
    return " to ".join(dict.fromkeys(ends))


# -- check -----------------------------------------------------------------------------------------------------------


def check(
    place: Annotated[
        str,
        typer.Argument(metavar="FILE_OR_PATH", help="An index, or data that has one beside it.", show_default=False),
    ],
    path: Annotated[
        list[str] | None, typer.Option("--path", help="What was indexed: to see files that were added, too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which files of a dataset changed, are gone or were added since it was indexed.

    By their sizes and times (on object stores, their versions), not by their bytes. Ends with 1 if anything changed.
    """
    file, named = _index_of(place)
    known = load_index(file)
    searched = path or ([named] if named else None)
    changes = known.check(_found(known, searched) if searched else _still_there(known))
    if as_json:
        plain = [{"path": each.path, "change": each.kind} for each in changes]
        say_json({"index": file, "added_looked_for": bool(searched), "changes": plain})
    else:
        _tell(known, changes, searched is not None)
    if changes:
        raise typer.Exit(1)


def _index_of(place: str) -> tuple[str, str | None]:
    """The index that is meant, and the path of what it indexed, where its name says that."""
    if not os.path.isdir(place) and is_index(place):
        folder, _, name = _plain(place).rpartition("/")
        return place, folder if name == NAME else None
    for is_file in (False, True):
        beside = _beside(place, is_file=is_file)
        if is_index(beside):
            return beside, place
    raise NotFound(f"{place} is no index, and has none beside it: make one with `strata data index`")


def _found(known: DatasetIndex, paths: list[str]) -> list[File]:
    try:
        return find_files(paths, suffixes=known.format.suffixes)
    except NotFound:
        return []  # all of it is missing


def _still_there(known: DatasetIndex) -> list[File]:
    """The indexed files as they are now, without those that are gone."""

    def look(number: int) -> File | None:
        file = known.file(number)
        try:
            return File(file.folder, file.name, *file.folder.look(file.name))
        except (FileNotFoundError, NotADirectoryError, NotFound):
            return None

    with ThreadPoolExecutor(THREADS, "strata-check") as threads:
        return [file for file in threads.map(look, range(known.files)) if file is not None]


def _tell(known: DatasetIndex, changes: list[Change], added_too: bool) -> None:
    console = open_console()
    styles = {"changed": "yellow", "missing": "red", "added": "cyan"}
    for each in changes[:SHOWN]:
        console.print(Text(f"{each.kind:<8}", styles[each.kind]).append(each.path, "default"), soft_wrap=True)
    if len(changes) > SHOWN:
        console.print(f"and {len(changes) - SHOWN:,} more: see --json")
    kinds = [each.kind for each in changes]
    counts = ", ".join(f"{kinds.count(kind):,} {kind}" for kind in styles if kind in kinds)
    told = f"{counted(known.files, 'file')} indexed: {counts or 'all as they were'}"
    console.print(told + ("" if added_too else " (added ones are not looked for without --path)"), soft_wrap=True)
