"""`strata ckpt ls` and `verify`: which checkpoints there are, and whether they are what was written."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from strata.checkpoint.manifest import written_metrics
from strata.checkpoint.overview import LATEST, Listed, Overview
from strata.cli.ckpt_place import AsJson, Found, Job, Steps, Url, opened
from strata.cli.drawing import Text, new_table, open_console, progress_bar
from strata.cli.output import say, say_error, say_json
from strata.core.ids import DEFAULT_JOB
from strata.errors import CheckpointDamaged, InvalidInput
from strata.texts import counted, moment, readable_bytes

METRICS_SHOWN = 4


def ls(
    url: Url,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Those left behind, too: a later run went back behind them.")
    ] = False,
    job: Job = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a job. Those whose manifests are damaged are shown, and told apart."""
    overview, place_job = asyncio.run(_overview(url, job))
    rows = [each for each in overview.checkpoints if everything or each.on_line or each.damage]
    if overview.lineage_damage:
        rows = list(overview.checkpoints)
    if as_json:
        found = {
            "url": overview.where,
            "job": place_job,
            "damage": overview.lineage_damage or None,
            "checkpoints": [document(each) for each in rows],
        }
        say_json(found)
    else:
        draw_table(overview, rows)
        if place_job == DEFAULT_JOB:
            say(f"these belong to job {DEFAULT_JOB}, which all runs without a job_id share", err=True)
    if overview.lineage_damage:
        say_error(overview.lineage_damage)
        raise typer.Exit(1)


async def _overview(url: str, job: str | None) -> tuple[Overview, str]:
    async with opened(url, job) as found:
        overview = await found.overview(count_tensors=True)
        if found.place.folder is not None:
            overview = Overview(overview.where, [overview.find(found.place.folder.name)], overview.lineage_damage)
        return overview, found.place.job


def document(listed: Listed) -> dict[str, Any]:
    """A checkpoint for programs."""
    metadata = listed.metadata
    return {
        "step": listed.folder.step,
        "folder": listed.folder.name,
        "term": metadata.term if metadata else None,
        "epoch": metadata.epoch if metadata else None,
        "saved": _saved(metadata.unix_seconds) if metadata else None,
        "bytes": listed.stored_bytes if metadata else None,
        "written_bytes": listed.written_bytes if metadata else None,
        "referred_bytes": listed.stored_bytes - listed.written_bytes if metadata else None,
        "tensors": listed.tensors,
        "ranks": listed.ranks if metadata else None,
        "metrics": written_metrics(metadata.metrics) if metadata else None,
        "on_line": listed.on_line,
        "latest": listed.is_latest,
        "pinned": listed.is_pinned,
        "damage": listed.damage or None,
    }


def _saved(unix_seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).isoformat()
    except (OverflowError, ValueError, OSError):  # whoever wrote the manifest may have written anything
        return None


def metrics_of(listed: Listed) -> str:
    """The first few, as people read them."""
    found = listed.metadata.metrics if listed.metadata else {}
    told = [
        f"{name} {value:.5g}" if isinstance(value, float | int) else f"{name} {value}" for name, value in found.items()
    ]
    return ", ".join(told[:METRICS_SHOWN]) + (", …" if len(told) > METRICS_SHOWN else "")


def draw_table(overview: Overview, rows: list[Listed]) -> None:
    console = open_console()
    table = new_table("step>", "epoch>", "saved", "size>", "written>", "referred>", "tensors>", "ranks>", "metrics", "")
    for each in rows:
        table.add_row(*_row(each, line_is_known=not overview.lineage_damage))
    console.print(table if rows else f"no checkpoint of {overview.where} can be loaded")
    for each in rows:
        if each.damage:
            console.print(Text(f"step {each.label} is damaged: {each.damage}", style="red"), soft_wrap=True)
    hidden = len(overview.checkpoints) - len(rows)
    if hidden:
        console.print(f"{counted(hidden, 'checkpoint')} left behind: see --all", style="dim")


def _row(listed: Listed, *, line_is_known: bool) -> list[RenderableType]:
    notes = Text(", ").join(
        Text(word, style=style)
        for word, style, holds in (
            ("damaged", "red", listed.damage),
            ("latest", "green", listed.is_latest),
            ("pinned", "cyan", listed.is_pinned),
            ("left behind", "yellow", line_is_known and listed.metadata is not None and not listed.on_line),
        )
        if holds
    )
    metadata = listed.metadata
    if metadata is None:
        return [Text(listed.label), *[Text()] * 8, notes]
    referred = listed.stored_bytes - listed.written_bytes
    return [
        Text(listed.label),
        Text(str(metadata.epoch)),
        Text(moment(metadata.unix_seconds)),
        Text(readable_bytes(listed.stored_bytes)),
        Text(readable_bytes(listed.written_bytes)),
        Text(readable_bytes(referred) if referred else ""),
        Text("" if listed.tensors is None else f"{listed.tensors:,}"),
        Text(f"{listed.ranks:,}"),
        Text(metrics_of(listed)),
        notes,
    ]


# -- verify ----------------------------------------------------------------------------------------------------------


def verify(
    url: Url,
    steps: Steps = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every committed checkpoint.")] = False,
    job: Job = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of checkpoints and compare it with its digest; of the latest, if no steps are named.

    Ends with 1 if anything is damaged. What is damaged is named, and the rest is verified all the same.
    """
    if everything and steps:
        raise InvalidInput("give steps or --all, not both")
    where, findings, others = asyncio.run(_verify(url, list(steps or ()), everything, job))
    damaged = [each for each in findings if not each["ok"]]
    if as_json:
        found = {"url": where, "ok": not damaged, "checkpoints": findings, "not_verified": others}
        say_json(found)
    else:
        for each in findings:
            _tell(each)
        size = readable_bytes(sum(each["bytes"] for each in findings))
        verdict = f"{len(damaged):,} damaged" if damaged else "all as written"
        say(f"{counted(len(findings), 'checkpoint')}, {size}: {verdict}")
        if others and not steps:
            say(f"this is the latest alone; {counted(len(others), 'other')} not looked at: see --all")
    if damaged:
        raise typer.Exit(1)


async def _verify(
    url: str, steps: list[str], everything: bool, job: str | None
) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Where, what was found, and the folders of those that were not looked at, unless the URL is that of one alone."""
    async with opened(url, job) as found:
        overview = await found.overview()
        if everything and found.place.folder is None:
            chosen = list(overview.checkpoints) or [overview.find(LATEST)]
        else:
            chosen = [overview.find(each) for each in found.named(steps) or [LATEST]]
        findings: list[dict[str, Any]] = []
        with progress_bar() as progress:
            total = sum(each.stored_bytes for each in chosen)
            bar = progress.add_task("verifying", total=total, objects="")
            for number, each in enumerate(chosen, 1):
                damaged = sum(not known["ok"] for known in findings)
                told = f"step {each.label}, {number} of {len(chosen)}" + (f", {damaged} damaged" if damaged else "")
                progress.update(bar, objects=told)
                findings.append(await _verified(found, each, lambda count: progress.advance(bar, count)))
        others = [each.folder.name for each in overview.checkpoints if each not in chosen]
        return overview.where, findings, others if found.place.folder is None else []


async def _verified(found: Found, listed: Listed, progress: Any) -> dict[str, Any]:
    began, size, damage = time.perf_counter(), 0, listed.damage
    if not damage:
        try:
            size = await found.checkpoints.verify(listed.folder, progress)
        except (CheckpointDamaged, InvalidInput) as error:
            damage = str(error)
    return {
        "step": listed.folder.step,
        "folder": listed.folder.name,
        "ok": not damage,
        "bytes": size,
        "seconds": round(time.perf_counter() - began, 3),
        "damage": damage or None,
    }


def _tell(finding: dict[str, Any]) -> None:
    line = Text("✓ " if finding["ok"] else "✗ ", style="green" if finding["ok"] else "red")
    said = f"{readable_bytes(finding['bytes'])} in {finding['seconds']:.1f} s" if finding["ok"] else finding["damage"]
    line.append(f"{finding['folder']:<12}  {said}", style="default")
    open_console().print(line, soft_wrap=True)
