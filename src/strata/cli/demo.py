"""`strata demo`: a real cluster on this machine in trouble, live in the terminal."""

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.drawing import Terminal
from strata.cli.output import say_json
from strata.cli.remote import Json
from strata.errors import InvalidInput


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave it running, until Ctrl-C.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="An empty folder for all files, which stay. [a temporary one]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train for real on this machine: kill a worker, add one, kill the coordinator, and read back what came of it.

    Takes about half a minute. Ctrl-C ends it, and leaves nothing behind.
    """
    from strata.data.columnar import arrow
    from strata.demo.cluster import Cluster
    from strata.demo.script import Script
    from strata.demo.summary import summarise
    from strata.demo.telling import tell
    from strata.demo.view import Lines, Screen

    arrow("parquet")  # says what is missing before anything is started
    console = Terminal(stderr=as_json)
    with _folder(folder) as place, Cluster(place) as cluster:
        with Screen(console) if console.is_terminal else Lines(console) as view:
            script = Script(cluster, view)
            script.play()
            if not keep:
                script.finish()
        summary = summarise(place, cluster.address, script.watching, script.times, is_over=not keep)
        if as_json:
            say_json(dataclasses.asdict(summary) | {"http": cluster.dashboard})
        else:
            tell(summary, console)
        if keep:
            port = cluster.http.rpartition(":")[2]
            other = f"strata status --coordinator {cluster.address} --http-port {port}"
            console.print()
            console.print(f"It runs on: see {cluster.dashboard}, or {other}", soft_wrap=True)
            console.print(f"Its files are in {place}. Ctrl-C ends it", soft_wrap=True)
            script.wait(console.print)
        elif not as_json:
            console.print(f"Its state was at {cluster.dashboard}: strata demo --keep leaves it running", soft_wrap=True)
    if summary.problems:
        raise typer.Exit(1)


@contextmanager
def _folder(said: Path | None) -> Iterator[Path]:
    if said is None:
        with tempfile.TemporaryDirectory(prefix="strata-demo-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    said.mkdir(parents=True, exist_ok=True)
    if any(said.iterdir()):
        raise InvalidInput(f"{said} is not empty: name a folder that is, or one that is not there")
    yield said.absolute()
