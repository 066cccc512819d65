"""A training process of the demo: `python -m strata.demo.worker NAME JOB FOLDER LEAST`.

It trains with whoever else is in its job, and goes back with them to the last checkpoint when that changes. Of each
step it notes a line of JSON in its own file: see `watching.Step`. It ends when the job is stopped, or its leash let go.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from strata.checkpoint import CheckpointManager
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.core.settings import Retention
from strata.data.loader import Loader
from strata.demo import leash, task
from strata.demo.summing import Summing, listen
from strata.worker.orchestrator import TrainingOrchestrator
from strata.worker.preemption import Stopped
from strata.worker.settings import OrchestratorConfig
from strata.worker.training import Training

DATASET = "rows"
SAVE_EVERY = 30
KEPT = 60
"""Checkpoints: more than the demo makes until it ends, and not a full disk where it is left running."""
EPOCHS = 1_000_000
"""As good as without end: the demo stops the job when it has seen enough."""
WAIT_SECONDS = 60.0


def lines_of(folder: Path, name: str) -> Path:
    """Where a worker notes its steps."""
    return folder / f"steps-{name}.jsonl"


class Crew:
    """This process and the others of its job, who add up what each found of a batch."""

    def __init__(self, name: str, job: str, least: int) -> None:
        self._listener = listen()
        config = OrchestratorConfig(register_seconds=WAIT_SECONDS, recover_seconds=WAIT_SECONDS)
        self.orchestrator = TrainingOrchestrator(name, job_id=job, config=config)
        self.orchestrator.blocking.register_worker("127.0.0.1", self._listener.getsockname()[1])
        self.orchestrator.blocking.recover(least)
        self._summing: Summing | None = None

    def meet(self) -> None:
        if self._summing is not None:
            self._summing.close()
        self.orchestrator.blocking.gather()
        place = self.orchestrator.session.place
        assert place is not None, "it has recovered"
        peers = [(peer.ip, peer.port) for peer in self.orchestrator.blocking.peers()]
        self._summing = Summing(place.rank, peers, self._listener, self.orchestrator.world_id, connect_seconds=5.0)

    @property
    def about(self) -> dict[str, Any]:
        """Its place, for those who watch."""
        place = self.orchestrator.session.place
        assert place is not None, "it has recovered"
        return {"world": self.orchestrator.world_id, "place": place.rank, "places": place.size}

    def mean(self, sums: list[task.Floats], loss: float, count: int) -> tuple[list[task.Floats], float, int]:
        """The mean gradients and loss over the samples of all, each sample counted alike; and how many these are."""
        assert self._summing is not None, "they have met"
        *means, totals = self._summing.mean([*sums, np.array([loss, count], np.float64)])
        per_place = float(totals[1])
        divided = [np.asarray(each / per_place, np.float32) for each in means]
        return divided, float(totals[0]) / per_place, round(per_place * self._summing.places)


class Notes:
    """What this worker tells of its steps, for those who watch."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, training: Training, step: int, **more: Any) -> None:
        """`goodput` is of the process's life so far, which is `wall_seconds`; `fingerprint` of the state behind a step
        that is saved."""
        spent = training.goodput
        life = {"goodput": round(spent.goodput, 4), "wall_seconds": round(spent.wall_seconds, 3)}
        self._file.write(json.dumps({"at": time.time(), "step": step, **life, **more}) + "\n")

    def close(self) -> None:
        self._file.close()


def main(name: str, job: str, folder: Path, least: int) -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    state, crew, notes = task.beginning(), Crew(name, job, least), Notes(lines_of(folder, name))
    settings = CheckpointManagerConfig(
        retention=Retention(keep_count=KEPT), coordinator_seconds=10.0, ranks_seconds=20.0
    )
    manager = CheckpointManager(folder / "checkpoints", config=settings)
    loader = Loader(dataset_id=DATASET, global_batch_size=task.BATCH, tail="short", threads=1)
    training = Training(state, loader, manager, epochs=EPOCHS, save_every=SAVE_EVERY, orchestrator=crew.orchestrator)
    training.on_world.append(crew.meet)
    try:
        with training:
            _train(training, crew, notes)
    except Stopped:
        seconds = {cause: round(spent, 3) for cause, spent in training.goodput.seconds.items()}
        notes.write(training, training.completed, fingerprint=task.fingerprint(state), seconds=seconds, **crew.about)
    notes.close()
    crew.orchestrator.blocking.deregister()


def _train(training: Training, crew: Crew, notes: Notes) -> None:
    state = training.state
    for batch in training:
        with training.step():
            loss, sums = task.gradients(state, batch["x"], batch["y"])
            with training.spent("barrier"):  # most of it is waiting for the slowest
                means, loss, samples = crew.mean(sums, loss, len(batch["y"]))
            task.descend(state, means, samples)
            training.report(loss=loss)
            step = training.completed + 1
            saved = {"fingerprint": task.fingerprint(state)} if step % SAVE_EVERY == 0 else {}
            notes.write(training, step, loss=loss, **crew.about, **saved)


if __name__ == "__main__":
    leash.hold()
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
