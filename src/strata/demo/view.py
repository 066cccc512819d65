"""The demo in a terminal, live; and in lines, where there is none."""

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from strata.demo.drawing import bars
from strata.demo.watching import Event, Watching
from strata.demo.worker import DATASET

FRAME_LINES = 18
"""What a frame takes besides the events."""
LEAST_EVENTS = 3
FRAMES_PER_SECOND = 10
QUIET = ("checkpoint_begun", "checkpoint_decided", "job_opened", "world_declared", "save_wanted")
"""Events that say less than the one after them."""
COLOURS = {
    "training": "green",
    "checkpointing": "blue",
    "recovering": "yellow",
    "failed": "red",
    "left": "bright_black",
}
SEVERITIES = {"info": "cyan", "warning": "yellow", "error": "bold red"}


class Lines:
    """One for each act and event, as they come."""

    def __init__(self, console: Console) -> None:
        self._console, self._began, self._told = console, time.time(), 0

    def tell(self, words: str) -> None:
        self._print(time.time(), "▶ " + words, "bold")

    def show(self, watching: Watching) -> None:
        for event in watching.events[self._told :]:
            if event.kind not in QUIET:
                self._print(event.at, f"  {event.message}", SEVERITIES[event.severity] if event.worker else "")
        self._told = len(watching.events)

    def _print(self, at: float, words: str, style: str) -> None:
        clock = Text(f"{at - self._began:6.1f} s  ", "bright_black")
        self._console.print(clock.append(words, style), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Screen:
    """Who is there and what each does, the loss, and what happens, in one frame that is drawn anew."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.time()
        self._act = ""
        self._live = Live(console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True)

    def tell(self, words: str) -> None:
        self._act = words

    def show(self, watching: Watching) -> None:
        self._live.update(self._frame(watching))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _frame(self, watching: Watching) -> Group:
        count = max(LEAST_EVENTS, self._console.height - FRAME_LINES)
        return Group(
            Text(f" strata demo · {time.time() - self._began:4.1f} s · {self._act}", "bold", no_wrap=True),
            _panel("workers", _workers(watching), _state(watching)),
            _panel("loss", _loss(watching, max(10, self._console.width - 24))),
            _panel("what the coordinator tells", _feed(watching.events, count, self._began)),
        )


def _panel(title: str, *content: Any) -> Panel:
    return Panel(Group(*content), title=Text(title), title_align="left", border_style="bright_black")


def _workers(watching: Watching) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("worker", "rank", "state", "step", "loss", "shards", "goodput"):
        table.add_column(title, justify="left" if title in ("worker", "state") else "right", no_wrap=True)
    for each in sorted(watching.workers, key=lambda each: str(each["worker_id"])):
        name, state, last = each["worker_id"], each["state"], watching.last(each["worker_id"])
        loss = "" if last is None or last.loss is None else f"{last.loss:.4f}"
        told = ["", "", ""] if last is None else [str(last.step), loss, f"{last.goodput:.0%}"]
        shards = str(each["shards"].get(DATASET, ""))
        table.add_row(name, str(each["rank"]), Text(state, COLOURS.get(state, "")), *told[:2], shards, told[2])
    return table


def _state(watching: Watching) -> Text:
    if not watching.is_serving:
        return Text("the coordinator does not answer", "bold red")
    saved = "nothing yet" if watching.committed < 0 else f"step {watching.committed}"
    return Text(f"coordinator serving, term {watching.term} · epoch {watching.epoch} · last checkpoint {saved}", "dim")


def _loss(watching: Watching, width: int) -> Text:
    losses = [loss for _, loss in watching.losses()]
    return Text(bars(losses, width), "green").append(f" {losses[-1]:.4f}" if losses else "", "bold")


def _feed(events: list[Event], count: int, began: float) -> Text:
    """The newest that fit."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for event in [each for each in events if each.kind not in QUIET][-count:]:
        text.append(f"{event.at - began:6.1f} ", "bright_black")
        text.append(f"{event.message}\n", SEVERITIES[event.severity] if event.severity != "info" else "")
    text.rstrip()
    return text
