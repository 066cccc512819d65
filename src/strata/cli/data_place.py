"""What the commands for datasets have in common: how they are told where and what, and how they ask."""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer

from strata.cli.drawing import counting_bar
from strata.config import Config
from strata.data.formats import FORMATS
from strata.data.index import DatasetIndex
from strata.data.indexing import Progress, index_dataset
from strata.data.ledger import Finished, Ledger
from strata.data.registry import DatasetRegistry
from strata.errors import StrataError
from strata.rpc import RpcError, Status
from strata.texts import some_of, spans
from strata.wire.asking import Asker, ask

TIMEOUT_SECONDS = 10.0

T = TypeVar("T")

Dataset = Annotated[str, typer.Argument(metavar="ID", help="The dataset's id.", show_default=False)]
Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="Where the files are.", show_default=False)]
Format = Annotated[
    str, typer.Option("--format", "-f", metavar="FORMAT", help=f"{', '.join(FORMATS)}.", show_default=False)
]
Job = Annotated[str | None, typer.Option("--job", help="The job's id [STRATA_JOB_ID, else default].")]
Epoch = Annotated[int | None, typer.Option("--epoch", min=0, help="Another epoch than that.", show_default=False)]


def asked(url: str | None, job: str | None, question: Callable[[Asker], Awaitable[T]]) -> T:
    """The answer of the coordinator that the configuration names."""
    with _reaching():
        return ask(Config({"coordinator_url": url, "job_id": job}, os.environ), TIMEOUT_SECONDS, question)


@contextmanager
def registry_at(url: str | None, job: str | None) -> Iterator[DatasetRegistry]:
    """The registry of the job that is meant."""
    with DatasetRegistry(url, job_id=job, timeout=TIMEOUT_SECONDS) as registry, _reaching():
        yield registry


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except RpcError as error:
        if error.status is not Status.UNAVAILABLE:
            raise
        raise StrataError(error.message) from None


def unproven_of(ledger: Ledger) -> str:
    """Which epochs, and why each is not proven."""
    unheard = [f"{each} (nothing was reported)" for each in spans(ledger.unheard)]
    short = [f"{each.epoch} ({_short_of(each)})" for each in ledger.short]
    return some_of([*unheard, *short], 6)


def _short_of(epoch: Finished) -> str:
    counts = {"missing": epoch.missing, "damaged and left out": epoch.left_out}
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def job_named(job: str | None) -> str:
    """The job that is meant, said or not."""
    return str(Config({"job_id": job}, os.environ)["job_id"])


@contextmanager
def counting() -> Iterator[Progress]:
    """A bar of files and samples, for whoever sees it."""
    with counting_bar() as progress:
        bar = progress.add_task("", total=None, note="looking for files")

        def told(done: int, files: int, rows: int) -> None:
            progress.update(bar, completed=done, total=files, note=f"{done:,} of {files:,} files, {rows:,} samples")

        yield told


def indexed(paths: list[str], format: str) -> DatasetIndex:
    """The index of what a person named, made now, with a bar."""
    with counting() as progress:
        return index_dataset(one_or_all(paths), format, progress=progress)


def one_or_all(paths: list[str]) -> str | list[str]:
    return paths[0] if len(paths) == 1 else paths
