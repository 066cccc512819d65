"""`strata status`, `workers`, `barriers`, `events` and `config`: what a coordinator knows, as tables or as JSON."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from strata.cli.drawing import Text, new_table, open_console
from strata.cli.output import say, say_json
from strata.cli.remote import Api, HttpPort, JobOption, Json, Limit, Url, configured
from strata.config import Config
from strata.errors import StrataError
from strata.texts import moment

_STYLES = {"info": "", "warning": "yellow", "error": "red"}
_STATES = {"training": "green", "failed": "red", "left": "dim", "checkpointing": "cyan", "recovering": "yellow"}
PATIENCE_SECONDS = 60.0


def status(url: Url = None, http_port: HttpPort = None, job: JobOption = None, as_json: Json = False) -> None:
    """What each job is doing, or what holds it back, and why."""
    api = Api(configured(url, http_port))
    told = api.get("/api/v1/dashboard", job=job, limit=1000)
    if as_json:
        say_json(told)
        return
    console = open_console()
    about, numbers = told["coordinator"], told["metrics"]
    console.print(
        f"coordinator {about['version']} at {api.base}, up {_span(about['uptime_seconds'])}, term {about['term']}: "
        f"{numbers['requests_per_s']:,.0f} requests/s, {about['connections']:,} connections"
    )
    if not told["jobs"]:
        console.print("no jobs yet: one begins with its first worker or dataset")
    for each in told["jobs"]:
        console.print(Text(each["explanation"], style="yellow" if each["held_back"] else "green"), soft_wrap=True)
        console.print(
            f"  {each['workers']} of {each['world_size']} workers, generation {each['generation']}, {_latest(each)}",
            soft_wrap=True,
        )
    if "jobs" in told["cut"]:
        console.print(f"only the first {len(told['jobs']):,} jobs are shown: see --job")


def _latest(job: Any) -> str:
    if job["latest_step"] is None:
        return "no checkpoint yet"
    at = job["latest_unix_seconds"]
    when = "" if at is None else f", {_span(time.time() - at)} ago"
    return f"latest checkpoint: step {job['latest_step']} ({_size(job['latest_bytes'])}{when})"


def workers(
    url: Url = None, http_port: HttpPort = None, job: JobOption = None, limit: Limit = 1000, as_json: Json = False
) -> None:
    """The workers of a job: what each is doing, and when it was last heard from."""
    found = Api(configured(url, http_port)).pages("/api/v1/workers", limit, job=job)
    if as_json:
        say_json(found)
        return
    table = new_table("job", "worker", "rank>", "state", "step>", "epoch>", "steps/s>", "heard", "shards>", "address")
    for each in found:
        state = Text(each["state"], style=_STATES.get(each["state"], ""))
        if each["stalled"]:
            state = Text(f"stalled ({_span(each['step_seconds_ago'] or 0)})", style="yellow")
        if each["draining"]:
            state.append(" (draining)")
        heard = each["heard_seconds_ago"]
        table.add_row(
            each["job_id"],
            each["worker_id"],
            str(each["rank"]),
            state,
            _number(each["step"]),
            _number(each["epoch"]),
            f"{each['steps_per_s']:.1f}" if each["steps_per_s"] else "",
            each["reason"] if heard is None else f"{_span(heard)} ago",
            str(sum(each["shards"].values()) or ""),
            each["address"],
        )
    _print(table, found, "no workers are registered")
    if len(found) == limit:
        open_console().print(f"only the first {limit:,} are shown: see --limit")


def barriers(url: Url = None, http_port: HttpPort = None, job: JobOption = None, as_json: Json = False) -> None:
    """Barriers that workers wait at, who is missing, and how the latest ended."""
    told = Api(configured(url, http_port)).get("/api/v1/barriers", job=job)
    if as_json:
        say_json(told)
        return
    table = new_table("job", "barrier", "arrived>", "waiting>", "missing")
    for each in told["open"]:
        table.add_row(
            each["job_id"],
            each["barrier_id"],
            f"{each['arrived']} of {each['expected']}",
            _span(each["waiting_seconds"]),
            ", ".join(each["missing"]),
        )
    _print(table, told["open"], "nobody waits at a barrier")
    past = new_table("job", "barrier", "round>", "outcome", "waited>", "released in>", "last, or missing")
    for each in told["past"][:20]:
        past.add_row(
            each["job_id"],
            each["barrier_id"],
            str(each["round"]),
            Text("released", style="green") if each["released"] else Text(each["reason"], style="red"),
            _span(each["waited_seconds"]),
            f"{each['release_seconds'] * 1000:.1f} ms" if each["released"] else "",
            each["last"] or ", ".join(each["missing"]),
        )
    if told["past"]:
        open_console().print(past)


def events(
    url: Url = None,
    http_port: HttpPort = None,
    job: JobOption = None,
    limit: Annotated[int, typer.Option(min=0, max=10_000, help="Begin with so many that were.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """What happened: the newest last."""
    api = Api(configured(url, http_port))
    past = api.pages("/api/v1/events", limit, job=job) if limit else []
    for each in reversed(past):
        _tell(each, as_json)
    if follow:
        follow_events(api, job, past[0]["id"] if past else "", as_json)


def follow_events(api: Api, job: str | None, last: str, as_json: bool) -> None:
    """For ever: it may restart, and goes on where we were. Why nothing is heard is said once, and after a while it ends
    with that."""
    heard_at, said = time.monotonic(), ""
    while True:
        try:
            for kind, each in api.stream("/api/v1/stream", job=job, after=last):
                heard_at, said = time.monotonic(), ""
                if kind == "event":
                    _tell(each, as_json)
                    last = each["id"]
        except StrataError as error:
            if time.monotonic() - heard_at > PATIENCE_SECONDS:
                raise
            if str(error) != said:
                said = str(error)
                say(f"{said} (trying again for {PATIENCE_SECONDS:.0f} s)", err=True)
        time.sleep(0.5)


def _tell(event: Any, as_json: bool) -> None:
    if as_json:
        say_json(event, indent=None)
        return
    line = Text(f"{moment(event['unix_seconds'])}  {event['job_id'] or '-':<12}  ")
    line.append(event["message"], style=_STYLES.get(event["severity"], ""))
    open_console().print(line, soft_wrap=True)


def config(
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file of settings. [strata.toml]")] = None,
    as_json: Json = False,
) -> None:
    """Which settings are in force, and where each came from. Secrets are masked."""
    found = Config({}, os.environ, file)
    if as_json:
        rows = [
            {"name": each.setting.name, "value": each.shown or None, "source": each.source} for each in found.values()
        ]
        say_json(rows)
        return
    table = new_table("setting", "value", "from", "what it is")
    for each in found.values():
        source = Text(each.source, style="dim" if each.source == "default" else "cyan")
        table.add_row(each.setting.name, each.shown, source, each.setting.about)
    _print(table, [1], "")


def _print(table: Table, rows: list[Any], otherwise: str) -> None:
    open_console().print(table if rows else otherwise)


def _number(value: int) -> str:
    return str(value) if value >= 0 else ""


def _span(seconds: float) -> str:
    """As people say it: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    for most, unit, divisor in ((10, "s", 0), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            return f"{seconds:.1f} {unit}" if not divisor else f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
