"""`strata ckpt export` and `import`: checkpoints as others have them, and back."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from strata.checkpoint.exporting import SINGLE, Exported, Meter, choose, export_safetensors, tree_in
from strata.checkpoint.foreign.dcp_writing import export_dcp
from strata.checkpoint.foreign.hf import export_hf
from strata.checkpoint.importing import Imported, ImportOptions, import_checkpoint, open_foreign
from strata.checkpoint.loading import names_of
from strata.checkpoint.locating import find_place
from strata.checkpoint.matching import chooser
from strata.checkpoint.overview import LATEST
from strata.checkpoint.skeleton import plain_values
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.whole import Whole
from strata.cli.ckpt_copy import target_store
from strata.cli.ckpt_place import Job, StepOption, Url, opened
from strata.cli.ckpt_show import Keys
from strata.cli.drawing import progress_bar
from strata.cli.output import say
from strata.core.ids import DEFAULT_JOB
from strata.errors import InvalidInput, NotFound
from strata.storage import StorageBackend
from strata.storage.copy import OPTIONS, holds_objects
from strata.storage.traces import leaving_no_trace
from strata.storage.urls import locate, open_storage, split_object_url
from strata.texts import counted, readable_bytes

GIB = 1 << 30

export = typer.Typer(
    help="Write a checkpoint's tensors in another format: safetensors, a folder of transformers (hf), or one of "
    "torch.distributed.checkpoint (dcp). Every byte is verified on the way.",
    no_args_is_help=True,
)

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write into what is there already.")]
Strip = Annotated[str | None, typer.Option("--strip", metavar="PREFIX", help="Leave out this beginning of names.")]
Work = Callable[[Store, Folder, Whole, Meter], Coroutine[Any, Any, Exported]]


@export.command()
def safetensors(
    url: Url,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A file that ends in .safetensors; or a folder, in any storage.")
    ],
    step: StepOption = LATEST,
    keys: Keys = None,
    strip: Strip = None,
    shard_gib: Annotated[
        float | None, typer.Option("--shard-gib", min=0.001, help="Several files of at most so much, and an index.")
    ] = None,
    overwrite: Overwrite = False,
    job: Job = None,
) -> None:
    """Write tensors to safetensors files, under their names in the state. Plain values are left out."""
    is_file = target.endswith(".safetensors")
    if is_file and shard_gib is not None:
        raise InvalidInput("several files need a folder: name one that does not end in .safetensors")
    shard_bytes = None if shard_gib is None else int(shard_gib * GIB)

    async def work(store: Store, folder: Folder, part: Whole, meter: Meter) -> Exported:
        choice = choose(part, keys, strip or "")
        place, name = split_object_url(target) if is_file else (target, SINGLE)
        async with _goal(place, name if is_file else "", overwrite) as goal:
            return await export_safetensors(
                store, folder, part, choice, goal, file=name, shard_bytes=shard_bytes, meter=meter
            )

    asyncio.run(_export(url, step, job, target, work))


@export.command()
def hf(
    url: Url,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder, in any storage.")],
    step: StepOption = LATEST,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="A local folder with config.json and a tokenizer's files; else the state's own config is taken.",
        ),
    ] = None,
    keys: Keys = None,
    strip: Strip = None,
    shard_gib: Annotated[float, typer.Option("--shard-gib", min=0.001, help="Files of at most so much.")] = 5.0,
    overwrite: Overwrite = False,
    job: Job = None,
) -> None:
    """Write a folder that transformers opens with from_pretrained.

    The weights are what stands under model/, if anything does; --keys and --strip say otherwise.

    Tied weights are written once if the configuration says tie_word_embeddings, else under each name.
    """

    async def work(store: Store, folder: Folder, part: Whole, meter: Meter) -> Exported:
        async with _goal(target, "", overwrite) as goal:
            return await export_hf(
                store,
                folder,
                part,
                goal,
                config_folder=config,
                keys=keys,
                strip=strip,
                shard_bytes=int(shard_gib * GIB),
                meter=meter,
            )

    asyncio.run(_export(url, step, job, target, work))


@export.command()
def dcp(
    url: Url,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A local folder, empty or not there.")],
    step: StepOption = LATEST,
    keys: Keys = None,
    job: Job = None,
) -> None:
    """Write a folder that torch.distributed.checkpoint loads.

    torch must be installed; no process group is needed. It takes 256 MiB of memory, or the largest tensor's size.

    Plain values go along, pickled by torch as it always does.
    """
    location = locate(target, None, os.environ)
    if location.scheme != "file":
        raise InvalidInput(f"torch writes to local folders only: export to one, then strata storage cp -r … {target}")

    async def work(store: Store, folder: Folder, part: Whole, meter: Meter) -> Exported:
        names = [*names_of(part), *plain_values(part.skeleton)]
        wants = chooser(names, keys) if keys else lambda name: True
        path = os.path.expanduser(location.path)
        return await export_dcp(store, folder, part, path, wants=wants, meter=meter)

    asyncio.run(_export(url, step, job, target, work))


async def _export(url: str, step: str, job: str | None, target: str, work: Work) -> None:
    async with opened(url, job) as found:
        listed = await found.one(step)
        store = found.checkpoints.store
        _, part = await tree_in(store, listed.folder)
        began = perf_counter()
        with progress_bar() as progress:
            bar = progress.add_task("exporting", total=None, objects=f"step {listed.label}")
            meter = Meter(lambda size: progress.update(bar, total=size), lambda count: progress.advance(bar, count))
            made = await work(store, listed.folder, part, meter)
    seconds = perf_counter() - began
    told = f"exported {counted(made.tensors, 'tensor')}, {readable_bytes(made.bytes)}, of step {listed.label}"
    say(f"{told} to {target} in {seconds:.1f} s: {counted(len(made.files), 'file')}")
    if made.left_out:
        say(f"{counted(made.left_out, 'array')} left out: bytes and numbers, which are no tensors", err=True)


@asynccontextmanager
async def _goal(url: str, file: str, overwrite: bool) -> AsyncIterator[StorageBackend]:
    """Where to write: nothing that is there is replaced unasked."""
    if url.startswith("memory://"):
        raise InvalidInput("memory:// ends with this command, and all that is in it: name another target")
    async with open_storage(url, options=OPTIONS) as storage:
        if not overwrite and (await storage.exists(file) if file else await holds_objects(url)):
            where = f"{storage.url}/{file}" if file else storage.url
            raise InvalidInput(f"{where} exists already: name another target, or say --overwrite")
        with leaving_no_trace(storage):
            yield storage


# -- import ----------------------------------------------------------------------------------------------------------


def import_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A .safetensors file, a folder of them, of transformers or of DCP; or a local .pt file.",
        ),
    ],
    url: Annotated[str, typer.Argument(metavar="URL", help="The root for CheckpointManager, or a job's folder in it.")],
    step: Annotated[int, typer.Option("--step", min=0, help="The step that it becomes.")],
    epoch: Annotated[int, typer.Option("--epoch", min=0, help="The epoch.")] = 0,
    keys: Keys = None,
    under: Annotated[
        str | None,
        typer.Option("--under", metavar="KEY", help="Where in the state; model, for a folder of transformers."),
    ] = None,
    arrays: Annotated[
        str, typer.Option("--arrays", help="What they are when loaded: torch, numpy, jax or tensorflow.")
    ] = "torch",
    job: Job = None,
) -> None:
    """Make a checkpoint from files in another format. It appears whole or not at all.

    Nothing that is read can run code: a pickle that asks for more than tensors and plain values is refused.
    """
    if url.startswith("memory://"):
        raise InvalidInput("memory:// ends with this command, and the checkpoint with it: name another target")
    options = ImportOptions(keys, under, arrays)
    asyncio.run(_import(source, url, step, epoch, job, options))


async def _import(source: str, url: str, step: int, epoch: int, job: str | None, options: ImportOptions) -> None:
    async with open_foreign(source, options) as foreign, target_store(url, job, await _usual_job(url, job)) as goal:
        began = perf_counter()
        with progress_bar() as progress:
            bar = progress.add_task("importing", total=foreign.size, objects=foreign.format)
            made = await import_checkpoint(
                foreign, goal, step, epoch, progress=lambda count: progress.advance(bar, count)
            )
        seconds = perf_counter() - began
        where = f"{goal.storage.url}/{goal.root}/{made.folder.name}"
    say(_told(made, step, where, seconds))


async def _usual_job(url: str, job: str | None) -> str:
    """The only job that is there; if there is none, the default."""
    usual = os.environ.get("STRATA_JOB_ID") or None
    if job or usual:
        return job or usual or ""
    try:
        return (await find_place(url)).job
    except NotFound:
        return DEFAULT_JOB


def _told(made: Imported, step: int, where: str, seconds: float) -> str:
    if made.was_there:
        return f"step {step} is there already: {where}"
    amount = f"{counted(made.tensors, 'tensor')}, {readable_bytes(made.bytes)}"
    return f"imported {amount} as step {step} in {seconds:.1f} s: {where}"
