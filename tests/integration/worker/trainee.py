"""A training process of the tests: `python -m tests.integration.worker.trainee FOLDER '{"seconds": 0.01, …}'`.

It notes each batch that it works on, with the step and its world, in a file of its own; in a job it meets the others at
each step.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from strata import CheckpointManager, LocalStorage, OrchestratorConfig, TrainingOrchestrator
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.data import Loader
from strata.demo.summing import Summing, listen
from strata.worker.training import Training

BATCH = 20


class SlowDisk(LocalStorage):
    """Every file of arrays takes so much longer."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(root)
        self._seconds = seconds

    @asynccontextmanager
    async def open_writer(self, path: str, **how: Any) -> AsyncIterator[Any]:
        async with super().open_writer(path, **how) as writer:
            await asyncio.sleep(self._seconds)
            yield writer


class Crew:
    """This process and the others of its job, who add up what each has of a batch."""

    def __init__(self, job: str, name: str, least: int, **place: Any) -> None:
        self._listener = listen()
        config = OrchestratorConfig(recover_seconds=60.0)
        self.orchestrator = TrainingOrchestrator(name, job_id=job, config=config, **place)
        self.orchestrator.blocking.register_worker("127.0.0.1", self._listener.getsockname()[1])
        self.orchestrator.blocking.recover(least)
        self._summing: Summing | None = None

    def meet(self) -> None:
        if self._summing is not None:
            self._summing.close()
        self.orchestrator.blocking.gather()
        place = self.orchestrator.session.place
        assert place is not None
        peers = [(peer.ip, peer.port) for peer in self.orchestrator.blocking.peers()]
        self._summing = Summing(place.rank, peers, self._listener, self.orchestrator.world_id, connect_seconds=15.0)

    def mean(self, numbers: list[float]) -> tuple[list[float], int]:
        """And of how many."""
        assert self._summing is not None
        (mean,) = self._summing.mean([np.array(numbers, np.float64)])
        return mean.tolist(), self._summing.places


def main(folder: Path, how: dict[str, Any]) -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    state: dict[str, Any] = {"total": np.zeros(1, np.int64), "samples": np.zeros(1, np.int64), "weight": np.ones(1)}
    crew = Crew(how["job"], how["name"], how.get("least", 1), **how.get("place", {})) if how.get("job") else None
    is_alone = crew is None and not how.get("of_a_job")
    source: dict[str, Any] = (
        {"dataset": str(folder / "rows"), "format": "parquet"} if is_alone else {"dataset_id": "rows"}
    )
    settings = CheckpointManagerConfig(
        coordinator_seconds=3.0,
        ranks_seconds=how.get("ranks_seconds", 20.0),
        when_busy=how.get("when_busy", "wait"),
    )
    place = folder / "checkpoints"
    where = SlowDisk(place, how["write_seconds"]) if "write_seconds" in how else place
    manager = CheckpointManager(where, keep_count=how.get("keep"), config=settings, **how.get("ranks", {}))
    loader = Loader(global_batch_size=BATCH, tail="short", **source)
    plan = {"epochs": how.get("epochs", 2), "save_every": how.get("save_every", 3)}
    plan |= {"notice_seconds": how.get("notice", 30.0), "orchestrator": None if crew is None else crew.orchestrator}
    log = (folder / f"steps-{os.getpid()}").open("a", buffering=1)
    with log, Training(state, loader, manager, **plan) as training:
        if crew is not None:
            training.on_world.append(crew.meet)
        for batch in training:
            with training.step():
                ids = batch["id"]
                numbers = [float(ids.sum()), float(len(ids))]
                (mean, mean_samples), places = (numbers, 1) if crew is None else crew.mean(numbers)
                state["total"] += round(mean * places)
                state["samples"] += round(mean_samples * places)
                state["weight"] += 0.01 * (mean / mean_samples - state["weight"])
                log.write(json.dumps([training.completed, loader.share, ids.tolist()]) + "\n")
                time.sleep(how.get("seconds", 0.01))
                if training.completed + 1 == how.get("fails_at"):
                    raise ValueError("no number")
                if training.completed + 1 == how.get("dies_at"):
                    os.kill(os.getpid(), signal.SIGKILL)
    found = {"steps": training.completed, "total": int(state["total"][0]), "samples": int(state["samples"][0])}
    print(json.dumps({**found, "went_back": training.recoveries, "goodput": training.goodput.goodput}))
    if crew is not None and how.get("leaves", True):
        crew.orchestrator.blocking.deregister()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
