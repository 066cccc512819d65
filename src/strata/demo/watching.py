"""What can be seen of the demo's cluster from outside: the coordinator's HTTP API, and the steps that workers note.

Nothing here is asked of the demo itself: it shows what anybody would see who looked.
"""

import json
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from strata.demo.cluster import DemoFailed
from strata.demo.worker import lines_of

ANSWER_SECONDS = 2.0


class Event(NamedTuple):
    """As the coordinator tells it."""

    id: str
    at: float
    kind: str
    message: str
    severity: str
    worker: str
    step: int | None


class Step(NamedTuple):
    """A worker's word that it has made a step, or at which it ended. `at` is the time of day, `loss` of all samples of
    the step, `places` how many its world has, `fingerprint` of the state behind it, where that is saved."""

    worker: str
    at: float
    step: int
    goodput: float
    wall_seconds: float
    loss: float | None = None
    world: str = ""
    place: int | None = None
    places: int | None = None
    fingerprint: str = ""
    seconds: dict[str, float] | None = None


class Watching:
    """`look` brings all of it up to date."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.board: dict[str, Any] = {}
        """The last answer of /api/dashboard."""
        self.is_serving = False
        self.events: list[Event] = []
        self._known: set[str] = set()
        self.steps: dict[str, list[Step]] = {}
        """Of each worker, in the order in which it made them: after going back it makes some again."""
        self._read: dict[str, int] = {}

    def look(self, http: str, workers: list[str]) -> None:
        """http: where the coordinator is; empty while nobody knows."""
        if http:
            self._ask(http)
        for name in workers:
            self._take_lines(name)

    def _ask(self, http: str) -> None:
        try:
            with urlopen(f"http://{http}/api/dashboard", timeout=ANSWER_SECONDS) as answer:
                self.board = json.loads(answer.read())
        except HTTPError as error:
            raise DemoFailed(f"the coordinator answers {error.code} {error.reason} at http://{http}") from error
        except (OSError, HTTPException):
            self.is_serving = False
            return
        self.is_serving = True
        for each in reversed(self.board["events"]):
            if each["id"] not in self._known:
                self._known.add(each["id"])
                about = (each["kind"], each["message"], each["severity"], each["worker_id"], each["step"])
                self.events.append(Event(each["id"], each["unix_seconds"], *about))

    def _take_lines(self, name: str) -> None:
        """Those that are whole: a worker that is killed may leave half of one."""
        path, known = lines_of(self._folder, name), self.steps.setdefault(name, [])
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read.get(name, 0))
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read[name] = self._read.get(name, 0) + len(whole)
        known.extend(Step(name, **json.loads(line)) for line in whole.splitlines())

    # -- what that says ----------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[dict[str, Any]]:
        """As the coordinator knows them."""
        found: list[dict[str, Any]] = self.board.get("workers", [])
        return found

    @property
    def live(self) -> list[dict[str, Any]]:
        return [each for each in self.workers if each["state"] not in ("failed", "left")]

    @property
    def committed(self) -> int:
        """The last step that all can go back to; -1 if there is none."""
        jobs = self.board.get("jobs", [])
        return -1 if not jobs or jobs[0]["latest_step"] is None else int(jobs[0]["latest_step"])

    @property
    def generation(self) -> int:
        """Of the world of the job."""
        jobs = self.board.get("jobs", [])
        return int(jobs[0]["generation"]) if jobs else 0

    @property
    def epoch(self) -> int:
        datasets = self.board.get("datasets", [])
        return int(datasets[0]["epoch"]) if datasets else 0

    @property
    def term(self) -> int:
        return int(self.board["coordinator"]["term"]) if self.board else 0

    def last(self, worker: str) -> Step | None:
        made = self.steps.get(worker)
        return made[-1] if made else None

    def reached(self, until: float) -> int:
        """The last step that any worker had made then."""
        return max((each.step for steps in self.steps.values() for each in steps if each.at <= until), default=0)

    def happened(self, kind: str, worker: str, since: float) -> Event | None:
        """The first such event of this worker."""
        found = (each for each in self.events if each.kind == kind and each.worker == worker and each.at >= since)
        return next(found, None)

    def stepped(self, places: int, since: float) -> Step | None:
        """The first step that a world of this size made."""
        made = [each for steps in self.steps.values() for each in steps if each.places == places and each.at > since]
        return min(made, key=lambda each: each.at, default=None)

    def losses(self) -> list[tuple[int, float]]:
        """Of each step, as it was made the last time."""
        made = self._made_last()
        return [(step, made[step].loss or 0.0) for step in sorted(made)]

    def worlds(self) -> dict[int, str]:
        """Of each step, the world that made it the last time: in others it was taken back."""
        return {step: each.world for step, each in self._made_last().items()}

    def _made_last(self) -> dict[int, Step]:
        latest: dict[int, Step] = {}
        for steps in self.steps.values():
            for each in steps:
                if each.loss is not None and (each.step not in latest or each.at > latest[each.step].at):
                    latest[each.step] = each
        return latest
