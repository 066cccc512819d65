"""Loaders as parts of a job whose coordinator is the core itself, with messages that are lost on the way."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from strata import background
from strata.coordinator import translate
from strata.core.effects import Registered
from strata.core.events import Found, Position
from strata.data import DatasetIndex, Loader, attendance
from strata.rpc import RpcError, Status
from strata.session import Who
from strata.wire.remotes import request_for
from tests.unit.core.cluster import JOB, Cluster

_ASKED: dict[str, tuple[Any, Any]] = {
    "ReportBatches": (translate.report_batches, translate.ledger_now),
    "Recover": (translate.recover, translate.recovery_point),
}


class Session:
    """As `strata.session` has it, for a worker whose lease lasts until somebody ends it. With `lost` one in so many
    questions, or its answer, does not arrive."""

    def __init__(self, cluster: Cluster, worker: str, rank: int | None, size: int | None, lost: Random) -> None:
        self.registered: Registered = cluster.register(worker, rank=rank, world_size=size)
        self.who = Who(JOB, worker, rank, size)
        self.is_silent = self.is_over = False
        self._cluster, self._lost = cluster, lost
        self._where: Any = None

    @property
    def generation(self) -> int:
        return self._cluster.generation

    def reads(self, dataset: str, where: Any) -> None:
        self._where = where

    def positions(self) -> dict[str, Position]:
        found = self._where() if self._where is not None else None
        return {} if found is None else {"rows": found}

    async def call(self, method: str, *, within: float = 0.0, **fields: Any) -> Any:
        fate = self._lost.random()
        if fate < 0.05 or self.is_silent:
            raise RpcError(Status.UNAVAILABLE, "lost on the way")
        answer = self._answer(method, fields)
        if fate > 0.95:
            raise RpcError(Status.UNAVAILABLE, "lost on the way back")
        return answer

    def _answer(self, method: str, fields: dict[str, Any]) -> Any:
        if method == "GetLedger":
            job = self._cluster.job
            dataset = job.dataset(fields["dataset_id"])
            owned = self._cluster.machine.volatile.ownerships.of(JOB, dataset, job.world.view)
            return translate.ledger(job, dataset, fields.get("from_place", 0), 1000, owned)
        to_event, to_answer = _ASKED[method]
        own = {"worker_id": self.who.worker, "incarnation": self.registered.incarnation}
        self._cluster.heartbeat(self.registered)
        return to_answer(self._cluster.send(to_event(request_for(method, job_id=JOB, **own, **fields))))


class SimulatedJob:
    """Ranks that take each step together, and a model that remembers what it has learned from."""

    def __init__(
        self,
        index: DatasetIndex,
        batch: int,
        how: dict[str, Any],
        seed: int,
        recovery: str,
        *,
        workers: int | None = None,
    ) -> None:
        """`workers`: of a DataLoader that the first rank reads with, and that stay. None: without a DataLoader."""
        self._workers = workers
        self._index, self._batch, self._how, self._carries_on = index, batch, how, recovery == "carry_on"
        self.cluster = Cluster(recovery=recovery)
        said = {"total_samples": index.rows, "shard_size": 4, "shuffle": True, "seed": 3, "order": "elastic"}
        self.cluster.add_dataset("rows", **said)
        self._lost, self._count, self._step = Random(seed), 0, 0
        self._sessions: dict[str, Session] = {}
        self._loaders: dict[str, Loader] = {}
        self._batches: dict[str, Callable[[], Iterator[Any]]] = {}
        self._reading: dict[str, Iterator[Any]] = {}
        self.learned: list[list[int]] = []
        self._saved: list[list[int]] = []
        self._is_away = False
        self._untold: list[Found] = []
        """What was saved while the coordinator was away."""

    @property
    def size(self) -> int:
        return len(self._loaders)

    def start(self, size: int) -> None:
        """All ranks, where the last checkpoint is."""
        for rank in range(size):
            self._join(*((None, None) if self._carries_on else (rank, size)))
        for session in self._sessions.values():
            self.cluster.heartbeat(session.registered)
        self.cluster.recover(next(iter(self._sessions.values())).registered)  # as who loads the checkpoint does
        self.learned = list(self._saved)
        self._iterate()

    def join(self) -> None:
        """Another one, beside those who are there: they have completed a step, and hear of it."""
        self._join(None, None)
        for loader in self._loaders.values():
            loader.finish()
            loader.is_to_begin()
        self._rejoin()

    def _join(self, rank: int | None, size: int | None) -> None:
        self._count += 1
        worker = f"w{self._count}" if rank is None else f"w{rank}"
        session = Session(self.cluster, worker, rank, size, self._lost)
        with patch.object(attendance, "joined", lambda *_, **__: session):
            while True:
                try:
                    made = Loader(self._index, self._batch, dataset_id="rows", **self._how)
                    break
                except RpcError:
                    continue
        self._sessions[worker], self._loaders[worker] = session, made
        has_workers = self._workers is not None and len(self._loaders) == 1
        self._batches[worker] = self._from_workers(made) if has_workers else made.__iter__

    def _from_workers(self, loader: Loader) -> Callable[[], Iterator[Any]]:
        from torch.utils.data import DataLoader

        stay: Any = {"persistent_workers": True, "multiprocessing_context": "fork"} if self._workers else {}
        how: Any = {"num_workers": self._workers, **stay}
        return partial(loader.over, DataLoader(loader.dataset(), batch_size=None, **how))

    def _rejoin(self) -> None:
        for loader in self._loaders.values():
            loader.rejoin()
        self._iterate()

    def _iterate(self) -> None:
        self._reading = {worker: begin() for worker, begin in self._batches.items()}

    def step(self) -> None:
        """All of them complete one, at the end of an epoch the first of the next."""
        batch = self._next()
        if batch is None:
            self._iterate()
            batch = self._next()
        assert batch is not None, "an epoch has batches"
        self.learned.append(batch)

    def _next(self) -> list[int] | None:
        ranked = sorted(self._reading, key=lambda worker: self._sessions[worker].registered.rank)
        first, *others = self._reading
        with ThreadPoolExecutor(len(ranked)) as threads:
            asked = {worker: threads.submit(next, self._reading[worker], None) for worker in others}
            own = next(self._reading[first], None)  # by this thread: workers that a pool's forks cannot end well
            shares: list[Any] = [own if worker == first else asked[worker].result() for worker in ranked]
        assert len({share is None for share in shares}) == 1, "all ranks take the same number of steps"
        if shares[0] is None:
            return None
        return [number for share in shares for number in share["id"].tolist()]

    def lose(self, which: int) -> None:
        """One is killed, in the middle of a step that nobody completes."""
        worker = sorted(self._loaders)[which % self.size]
        if self._next() is None:
            self._iterate()
            self._next()
        gone = self._end(worker)
        self.cluster.expire(gone.registered)
        if self._loaders:
            self._rejoin()

    def crash(self, size: int) -> None:
        """All are killed, and start again, as many as may be."""
        gone = [self._end(worker).registered for worker in list(self._loaders)]
        self.cluster.expire(*gone)
        self.start(size)

    def save(self) -> None:
        self._step += 1
        positions = {worker: session.positions() for worker, session in self._sessions.items()}
        if self._is_away:
            data = next(iter(positions.values()))
            left_out = sum(each["rows"].left_out for each in positions.values())
            data = {"rows": replace(data["rows"], left_out=left_out)}
            self._untold.append(Found(self._step, 0, f"step_{self._step}", data))
        else:
            on_the_loop(lambda: self.cluster.save(self._workers_by_rank(), self._step, positions=positions))
        self._saved = list(self.learned)

    def _workers_by_rank(self) -> list[Registered]:
        return sorted((session.registered for session in self._sessions.values()), key=lambda who: who.rank)

    def restart(self) -> None:
        on_the_loop(self.cluster.restart)

    def away(self, steps: int, save_every: int = 3) -> None:
        """The coordinator is, while the ranks take so many steps and save some. It learns of that when it is back. To
        begin, they need it."""
        self.step()
        self._goes(is_away=True)
        for step in range(steps):
            self.step()
            if step % save_every == 0:
                self.save()
        self._goes(is_away=False)

    def _goes(self, *, is_away: bool) -> None:
        def go() -> None:
            self._is_away = is_away
            for session in self._sessions.values():
                session.is_silent = is_away
            if not is_away:
                self.cluster.restart()
                self._tell()

        on_the_loop(go)

    def _tell(self) -> None:
        """As rank 0 does before its next save."""
        if self._untold:
            *earlier, latest = self._untold
            asked: dict[str, Any] = {"found": latest, "earlier": earlier, "since": self.cluster.job.points}
            self.cluster.recover(self._workers_by_rank()[0], **asked)
        self._untold = []

    def finish(self) -> None:
        """All have completed their last step."""
        for loader in self._loaders.values():
            loader.finish()

    def _end(self, worker: str) -> Session:
        self._reading.pop(worker, None)
        del self._batches[worker]
        part = self._loaders.pop(worker)
        session = self._sessions.pop(worker)
        session.is_silent = session.is_over = True  # as a process that is killed: nothing is told for it any more
        part.close()
        return session

    def close(self) -> None:
        for worker in list(self._loaders):
            self._end(worker)


def on_the_loop(work: Callable[[], Any]) -> None:
    """Loaders speak with the cluster there, and it is used by one thread at a time."""

    async def done() -> None:
        work()

    background.run(done())


@contextmanager
def simulated(*given: Any, workers: int | None = None) -> Iterator[SimulatedJob]:
    job = SimulatedJob(*given, workers=workers)
    quick = patch.multiple(attendance, PAUSE_SECONDS=0.0005, leave=lambda session: None)
    with quick:
        try:
            yield job
        finally:
            job.close()
