"""Ranks of a job as real processes, which do what they are told over a pipe.

They are forked from a server that has loaded what they need, and so start in milliseconds. One of them may be doomed:
see `steps`.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, asking
from strata.errors import StrataError
from strata.rpc import RpcError
from strata.session import session
from strata.storage import LocalStorage
from strata.testing.manager_seam import ManagerSeam
from tests.chaos.steps import NEVER, STRUCK, Doom, SteppedStorage, Steps, count_calls, state_of_process
from tests.unit.checkpoint.crews import state_of

ANSWER_SECONDS = 120.0
REGISTERED_SECONDS = 2.0

nursery = get_context("forkserver")
nursery.set_forkserver_preload(
    ["__main__", "tests.chaos.ranks", "strata.checkpoint.joining", "strata.cli", "strata.coordinator.process", "uvloop"]
)
births = threading.Lock()
"""Held while a process is started: what `multiprocessing` knows of others is not for several threads."""


class Berth(NamedTuple):
    """Everything that a rank is told when it is born."""

    root: Path
    rank: int
    size: int
    run: str
    coordinator: str = ""
    patience: float = 60.0
    """How many seconds it waits for other ranks."""
    reach: float = 20.0
    """How many seconds the coordinator may take to answer."""
    keep: int = 2
    doom: Doom = NEVER

    @property
    def log(self) -> Path:
        """The steps that it took; beside it, in `.log`, what it said."""
        return self.root.parent / f"steps-{self.run}-{self.rank}.txt"


class Answer(NamedTuple):
    """What a rank says of an order. `error` names the class, too; a rank that is gone says nothing any more."""

    value: Any = None
    error: str = ""
    gone: bool = False

    @property
    def well(self) -> bool:
        return not self.error and not self.gone


def live(berth: Berth, pipe: Connection) -> None:
    """The life of a rank."""
    os.dup2(os.open(berth.log.with_suffix(".log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666), 2)
    steps = Steps(berth.doom, str(berth.log))
    if berth.coordinator:
        count_calls(steps)
        session.TRY_SECONDS = asking.CALL_SECONDS = berth.reach  # to tell one that is away takes no longer
    manager = CheckpointManager(
        SteppedStorage(LocalStorage(berth.root), steps),
        rank=berth.rank,
        world_size=berth.size,
        run_id=berth.run,
        keep_count=berth.keep,
        config=CheckpointManagerConfig(ranks_seconds=berth.patience, coordinator_seconds=berth.reach),
        coordinator_url=berth.coordinator,
    )
    if berth.coordinator:  # the first step, and not one that comes some time during the others
        with suppress(RpcError):
            background.run(ManagerSeam(manager).join_job(REGISTERED_SECONDS))
    while True:
        what, given = pipe.recv()
        try:
            pipe.send(Answer(_done(manager, berth.rank, what, given)))
        except StrataError as error:
            pipe.send(Answer(error=f"{type(error).__name__}: {error}"))
        if what == "close":
            return


def _done(manager: CheckpointManager, rank: int, what: str, given: dict[str, Any]) -> Any:
    if what == "load":
        return manager.load(**given)
    if what == "save":
        manager.save({**state_of(rank, given["step"]), "by": given["by"]}, given["step"])
    elif what == "list":
        return manager.list_checkpoints()
    else:
        getattr(manager, what)()
    return None


class Rank:
    """One of them, as its parent sees it."""

    def __init__(self, berth: Berth) -> None:
        self.berth = berth
        self._pipe, theirs = nursery.Pipe()
        self.process = nursery.Process(target=live, args=(berth, theirs), daemon=True)
        with births:
            self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def tell(self, what: str, **given: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send((what, given))

    def hear(self) -> Answer:
        """Its next answer; AssertionError if there is none in time."""
        if not self._pipe.poll(ANSWER_SECONDS):
            raise AssertionError(f"rank {self.berth.rank} has not answered, after {self.steps()[-3:]}")
        try:
            answer: Answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return Answer(gone=True)
        return answer

    def steps(self) -> list[str]:
        return self.berth.log.read_text("utf-8").splitlines() if self.berth.log.exists() else []

    @property
    def struck(self) -> str:
        """The step at which its doom came; empty if it never did."""
        return next((each.removeprefix(STRUCK) for each in self.steps() if each.startswith(STRUCK)), "")

    def stands_still(self) -> bool:
        """Once that is so; False if it has come to its end instead."""
        ends = time.monotonic() + ANSWER_SECONDS
        while (state := state_of_process(self.pid)) != "T":
            if state in ("", "Z"):
                return False
            assert time.monotonic() < ends, f"rank {self.berth.rank} neither stands still nor ends: {self.steps()[-3:]}"
            time.sleep(0.005)
        return True

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()


class Run:
    """One start of all ranks."""

    def __init__(self, berth: Berth, victim: int, doom: Doom) -> None:
        self.ranks = [
            Rank(berth._replace(rank=rank, doom=doom if rank == victim else NEVER)) for rank in range(berth.size)
        ]

    def tell(self, what: str, **given: Any) -> None:
        for rank in self.ranks:
            rank.tell(what, **given)

    def each(self, what: str, **given: Any) -> list[Any]:
        """What all of them give; none may fail."""
        self.tell(what, **given)
        answers = [rank.hear() for rank in self.ranks]
        assert all(answer.well for answer in answers), f"{what} {given}: {[each.error for each in answers]}"
        return [answer.value for answer in answers]


@contextmanager
def started(berth: Berth, victim: int = -1, doom: Doom = NEVER) -> Iterator[Run]:
    """The doom is that of one of them. Whatever becomes of them, they are ended."""
    run = Run(berth, victim, doom)
    try:
        yield run
    finally:
        for rank in run.ranks:
            rank.end()
