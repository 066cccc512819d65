"""`strata data bench`: how fast the loader reads files, on this machine."""

import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer

from strata.cli.data_place import Format, Paths, indexed
from strata.cli.drawing import counting_bar, open_console
from strata.cli.output import say_json
from strata.cli.remote import Json
from strata.data.index import DatasetIndex
from strata.data.loader import MEMORY_BYTES, Loader
from strata.errors import InvalidInput
from strata.texts import counted, readable_bytes

MEASURED_EVERY = 16
"""Batches: to add up the sizes of texts in all of them would be part of what is measured."""
TOLD_SECONDS = 0.2


class Measured(NamedTuple):
    rows: int
    batches: int
    data_bytes: float
    seconds: float
    first_batch_seconds: float
    blocks_read: int


def bench(
    paths: Paths,
    format: Format,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples of a batch.")] = 256,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="For so long, epoch after epoch. Otherwise one epoch.")
    ] = None,
    column: Annotated[list[str] | None, typer.Option("--column", help="Only this; may be said again.")] = None,
    in_order: Annotated[bool, typer.Option("--in-order", help="Without shuffling.")] = False,
    memory_mib: Annotated[
        int, typer.Option("--memory", min=1, metavar="MIB", help="For decoded blocks, in MiB.")
    ] = MEMORY_BYTES >> 20,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="That read files (at most 4).")] = None,
    as_json: Json = False,
) -> None:
    """Measure how fast the loader gives out batches: samples and bytes a second, and the time to the first batch.

    Indexing is told apart. Files that were read shortly before come out of the machine's memory, not from the disk.
    """
    began = time.perf_counter()
    made = indexed(paths, format)
    index_seconds = time.perf_counter() - began
    if made.rows < batch_size:
        raise InvalidInput(
            f"{counted(made.rows, 'sample')} fill no batch of {batch_size:,}: take a smaller --batch-size"
        )
    began = time.perf_counter()
    with Loader(
        made,
        batch_size,
        shuffle=not in_order,
        columns=column or None,
        memory_bytes=memory_mib << 20,
        threads=threads,
    ) as loader:
        measured = _measure(loader, batch_size, began, seconds)
    if as_json:
        say_json(_document(made, measured, index_seconds))
    else:
        _tell(made, measured, index_seconds, batch_size)


def _measure(loader: Loader, batch_size: int, began: float, seconds: float | None) -> Measured:
    rows = batches = sized_rows = 0
    sized_bytes, first, told_at = 0.0, 0.0, 0.0
    with counting_bar() as progress:
        bar = progress.add_task("", total=len(loader) if seconds is None else seconds, note="")
        for batch in _batches(loader, seconds is not None):
            now = time.perf_counter() - began
            first = first or now
            batches += 1
            rows += batch_size
            if batches % MEASURED_EVERY == 1:
                sized_bytes += _size(batch)
                sized_rows += batch_size
            if now - told_at > TOLD_SECONDS:
                told_at = now
                done = batches if seconds is None else now
                progress.update(bar, completed=done, note=f"{rows:,} samples, {rows / now:,.0f} a second")
            if seconds is not None and now >= seconds:
                break
        total = time.perf_counter() - began
    return Measured(rows, batches, rows * sized_bytes / sized_rows, total, first, loader.blocks_read)


def _batches(loader: Loader, for_ever: bool) -> Iterator[Any]:
    yield from loader
    while for_ever:
        yield from loader


def _size(batch: dict[str, Any]) -> int:
    """Of what is given out: of texts and bytes their own length, and not that of pointers to them."""
    return sum(
        sum(len(each) if isinstance(each, str | bytes) else 8 for each in array)
        if array.dtype == object
        else array.nbytes
        for array in batch.values()
    )


def _document(made: DatasetIndex, measured: Measured, index_seconds: float) -> dict[str, Any]:
    return {
        "rows": measured.rows,
        "batches": measured.batches,
        "seconds": round(measured.seconds, 4),
        "rows_per_s": round(measured.rows / measured.seconds, 1),
        "mb_per_s": round(measured.data_bytes / measured.seconds / 1e6, 2),
        "first_batch_seconds": round(measured.first_batch_seconds, 4),
        "index_seconds": round(index_seconds, 4),
        "files": made.files,
        "blocks": made.blocks,
        "blocks_read": measured.blocks_read,
        "dataset_rows": made.rows,
    }


def _tell(made: DatasetIndex, measured: Measured, index_seconds: float, batch_size: int) -> None:
    console = open_console()
    told = _document(made, measured, index_seconds)
    size = readable_bytes(int(made.file_table.sizes.sum()))
    rows = [
        ("dataset", f"{counted(made.rows, 'sample')} in {counted(made.files, 'file')}, {size}"),
        ("indexing", f"{index_seconds:.3f} s, {counted(made.blocks, 'block')}"),
        ("first batch", f"{measured.first_batch_seconds * 1000:,.1f} ms after the loader was made"),
        ("batches", f"{measured.batches:,} of {batch_size:,} samples in {measured.seconds:.2f} s"),
        ("samples", f"{told['rows_per_s']:,.0f} a second"),
        ("bytes", f"{told['mb_per_s']:,.1f} MB a second, decoded"),
    ]
    for name, value in rows:
        console.print(f"{name:<12}  {value}")
    if measured.blocks_read > made.blocks and measured.rows <= made.rows:
        console.print(
            f"blocks were read {measured.blocks_read / made.blocks:.1f} times each, since they did not stay in memory: "
            "more --memory helps",
            style="yellow",
        )
