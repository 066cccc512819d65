"""Checkpoints of 1, 10 and 100 MB, as bytes and as trees: one after the other, and several jobs at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import torch

from benchmarks import Row, Table
from benchmarks.checkpoint_throughput.places import Place
from benchmarks.checkpoint_throughput.states import noise
from benchmarks.storage.local import WRITERS
from benchmarks.storage.turns import Contenders, nothing, rate, take_turns
from strata.checkpoint import CheckpointManager

MB = 1_000_000
TENSORS = 8
ROUNDS = 5


class Case(NamedTuple):
    """So many saves in one turn of each, and what was published for that size: to a disk, and to S3."""

    size: int
    saves: int
    local_floor: float
    object_floor: float


CASES = (Case(1 * MB, 16, 520.0, 195.0), Case(10 * MB, 8, 510.0, 198.0), Case(100 * MB, 1, 505.0, 202.0))


class Job:
    """Saves one state again and again."""

    def __init__(self, manager: CheckpointManager, state: object) -> None:
        self._manager, self._state = manager, state
        self._steps = 0

    def save(self, count: int) -> None:
        for _ in range(count):
            self._steps += 1
            self._manager.save(self._state, self._steps)

    def settle(self) -> None:
        """What was saved is deleted, which is no part of a save."""
        for step in self._manager.list_checkpoints():
            self._manager.delete(step)


def table(place: Place, rounds: int = ROUNDS) -> Table:
    rows = [row for case in CASES for row in _rows(place, case, rounds)]
    return Table(f"Saves of 1, 10 and 100 MB, {place.name}, until committed", rows)


def _rows(place: Place, case: Case, rounds: int) -> list[Row]:
    data = noise(case.size // 4)
    states = {"bytes": data.numpy().tobytes(), "tree": dict(enumerate(data.chunk(TENSORS)))}
    with ExitStack() as stack, ThreadPoolExecutor(WRITERS) as threads:
        jobs = {
            what: [
                Job(stack.enter_context(place.manager(f"{case.size}-{what}-{number}", keep_count=None)), state)
                for number in range(WRITERS)
            ]
            for what, state in states.items()
        }
        acts = {what: _acts(own, case, threads) for what, own in jobs.items()}
        contenders = {f"{what}, {how}": act for what, own in acts.items() for how, act in own.items()}

        def settle() -> None:
            for own in jobs.values():
                list(threads.map(Job.settle, own))

        # The server has room for all of it, and takes longer to delete something than to store it.
        between = settle if place.folder is not None else nothing
        turns = take_turns({**contenders, **_plain(place, case, data)}, rounds, between)
    floor = case.local_floor if place.folder is not None else case.object_floor
    return [
        rate(f"{case.size // MB} MB, {name}", own, case.size * case.saves, target=floor if name in contenders else None)
        for name, own in turns.items()
    ]


def _acts(jobs: list[Job], case: Case, threads: ThreadPoolExecutor) -> dict[str, Callable[[], object]]:
    """By one job, and by several at once where there is something for each of them."""
    found: dict[str, Callable[[], object]] = {"one after the other": lambda: jobs[0].save(case.saves)}
    if case.saves >= len(jobs):
        each = case.saves // len(jobs)
        found[f"{len(jobs)} jobs at once"] = lambda: list(threads.map(lambda job: job.save(each), jobs))
    return found


def _plain(place: Place, case: Case, data: torch.Tensor) -> Contenders:
    """As many files or objects, each written plainly, and flushed."""
    block = data.view(torch.uint8).numpy()

    def write() -> None:
        for number in range(case.saves):
            place.write(f"plain-{number}", block)

    return {f"{place.plainly}, one after the other": write}
