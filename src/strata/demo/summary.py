"""What the demo came to, read back from where it is kept: the ledger, the checkpoints, and the workers' own lines.

The law: each figure is measured or read, and what does not hold is among `problems`, so that no summary says more than
is so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from strata.checkpoint import CheckpointReader
from strata.config import Config
from strata.data.ledger import Ledger, Verdict, judge, read_ledger
from strata.demo import task
from strata.demo.cluster import JOB
from strata.demo.script import ANSWER_SECONDS, Times
from strata.demo.watching import Step, Watching
from strata.demo.worker import DATASET
from strata.wire.asking import ask


@dataclass(frozen=True)
class Epoch:
    """As the ledger has it: `is_over`, and how many of its samples are counted, each once."""

    epoch: int
    is_over: bool
    total: int
    consumed: int


@dataclass(frozen=True)
class Checkpoint:
    """One of which every byte was read and compared. `ranks` are the workers that noted the fingerprint of their state
    behind this step, in the world that made it last; `is_equal`: all of it did, and have that of the checkpoint."""

    step: int
    size_bytes: int
    samples: int
    ranks: list[str]
    is_equal: bool


@dataclass(frozen=True)
class Worker:
    """Where the time of a worker went, as it says: of `wall_seconds` to its last step, `useful_seconds` made steps that
    count. `seconds` is by cause, of those that ended by themselves."""

    worker: str
    step: int
    wall_seconds: float
    useful_seconds: float
    seconds: dict[str, float] | None

    @property
    def goodput(self) -> float:
        return self.useful_seconds / self.wall_seconds if self.wall_seconds else 0.0


@dataclass(frozen=True)
class Recovery:
    """How long things took, in seconds from the kill, or from the start of the process that was added. `lost_steps`
    were made again."""

    detected: float
    rebalanced: float
    recovered: float
    lost_steps: int
    joined: float
    grown: float
    coordinator_down: float
    coordinator_heard_all: float
    steps_alone: int


@dataclass(frozen=True)
class Summary:
    """`problems`: what should hold and does not; empty if all is well."""

    seconds: float
    steps: int
    losses: list[tuple[int, float]]
    epochs: list[Epoch]
    checkpoints: list[Checkpoint]
    workers: list[Worker]
    goodput: float
    recovery: Recovery
    problems: list[str]


def summarise(folder: Path, address: str, watching: Watching, times: Times, *, is_over: bool) -> Summary:
    """is_over: whether the job was stopped. While it runs, ledger and checkpoints are not of one instant."""
    checkpoints = _checkpoints(folder, watching)
    config = Config({"coordinator_url": address, "job_id": JOB}, {})
    epochs = _epochs(ask(config, ANSWER_SECONDS, lambda asker: read_ledger(asker, DATASET)))
    losses, worlds = watching.losses(), watching.worlds()
    workers = [worker_of(each, worlds) for each in watching.steps.values() if each]
    is_last = is_over and bool(losses and checkpoints) and losses[-1][0] == checkpoints[-1].step
    return Summary(
        seconds=times.ended - times.began,
        steps=checkpoints[-1].step if checkpoints else 0,
        losses=losses,
        epochs=epochs,
        checkpoints=checkpoints,
        workers=workers,
        goodput=goodput_of(workers),
        recovery=_recovery(times),
        problems=problems(epochs, checkpoints, losses, is_last=is_last),
    )


def _epochs(ledger: Ledger) -> list[Epoch]:
    verdicts = [judge(ledger, each.epoch) for each in ledger.finished]
    return [_epoch(each) for each in (*verdicts, judge(ledger, ledger.dataset.epoch))]


def _epoch(verdict: Verdict) -> Epoch:
    return Epoch(verdict.epoch, verdict.state == "over", verdict.total, verdict.consumed)


def _checkpoints(folder: Path, watching: Watching) -> list[Checkpoint]:
    with CheckpointReader(folder / "checkpoints", job_id=JOB) as reader:
        return [_checkpoint(reader, step, watching) for step in reader.list_checkpoints()]


def _checkpoint(reader: CheckpointReader, step: int, watching: Watching) -> Checkpoint:
    size, state = reader.verify(step), reader.load(step)
    noted, own = notes_of(step, chain.from_iterable(watching.steps.values())), task.fingerprint(state)
    is_equal = all(each.fingerprint == own and each.places == len(noted) for each in noted)
    return Checkpoint(step, size, int(state[task.SAMPLES][0]), sorted(each.worker for each in noted), is_equal)


def notes_of(step: int, steps: Iterable[Step]) -> list[Step]:
    """The workers' words on the state behind a step, of the world that made it last: others were taken back."""
    told = sorted((each for each in steps if each.step == step and each.fingerprint), key=lambda each: each.at)
    return [each for each in told if each.world == told[-1].world]


def worker_of(steps: list[Step], worlds: dict[int, str]) -> Worker:
    """worlds: of each step, the one that made it last. A worker that was killed could not take back what was made again
    without it: of its account, that counts which was true at its last step that nobody made again."""
    last = steps[-1]
    kept = [each for each in steps if worlds.get(each.step, each.world) == each.world]
    useful = kept[-1].goodput * kept[-1].wall_seconds if kept else 0.0
    return Worker(last.worker, last.step, last.wall_seconds, useful, last.seconds)


def goodput_of(workers: Sequence[Worker]) -> float:
    """Of all the time of all of them: who was there for longer counts for more."""
    wall = sum(each.wall_seconds for each in workers)
    return sum(each.useful_seconds for each in workers) / wall if wall else 0.0


def _recovery(times: Times) -> Recovery:
    return Recovery(
        detected=times.detected - times.killed,
        rebalanced=times.rebalanced - times.killed,
        recovered=times.recovered - times.killed,
        lost_steps=times.killed_at_step + 1 - times.recovered_at_step,
        joined=times.joined - times.added,
        grown=times.grown - times.added,
        coordinator_down=times.coordinator_serves - times.coordinator_killed,
        coordinator_heard_all=times.coordinator_heard_all - times.coordinator_killed,
        steps_alone=times.steps_alone,
    )


def problems(
    epochs: Sequence[Epoch], checkpoints: Sequence[Checkpoint], losses: Sequence[tuple[int, float]], *, is_last: bool
) -> list[str]:
    """What should hold, and does not. is_last: whether no step was made behind the last checkpoint."""
    known = [each.epoch for each in epochs]
    found = [f"the ledger has no proof of epoch {each}" for each in range(known[-1]) if each not in known]
    found += [
        f"epoch {each.epoch} is over, and {each.total - each.consumed:,} of its samples are not counted"
        for each in epochs
        if each.is_over and each.consumed != each.total
    ]
    found += [
        f"the state of step {each.step} is not the same on all ranks" for each in checkpoints if not each.is_equal
    ]
    if not checkpoints:
        return [*found, "there is no checkpoint"]
    counted, trained = sum(each.consumed for each in epochs), checkpoints[-1].samples
    if is_last and trained != counted:
        found.append(f"the last checkpoint has learned from {trained:,} samples, and the ledger counts {counted:,}")
    if losses and losses[-1][1] >= losses[0][1]:
        found.append(f"the loss did not fall: it was {losses[0][1]:.3g}, and is {losses[-1][1]:.3g}")
    return found
