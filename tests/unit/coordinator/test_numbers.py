"""Numbers: what the door lets in every reader holds, and what an older version let in hides nothing else."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from strata.cli.data_jobs import document, draw_table
from strata.coordinator import metrics, translate
from strata.coordinator.hub import Hub
from strata.coordinator.stats import BarrierStats, JournalStats, RequestStats
from strata.coordinator.views import Views
from strata.coordinator.worlds import Worlds
from strata.core.events import Event, Position
from strata.core.machine import Machine
from strata.core.records import DatasetRegistered, JobOpened, PartAcknowledged
from strata.data.registered import registered
from strata.errors import InvalidInput, StrataError
from strata.v1 import coordinator_pb2 as pb
from tests.unit.coordinator.hubs import SlowJournal, register, run
from tests.unit.core.cluster import JOB, Cluster
from tests.unit.core.test_wrong_input import SOUND, a_cluster, event

IDENTITIES = {"seed"}
"""64 bits of a seed are one number among others: nobody counts with it."""
WHOLE = (2**53, 2**63 - 1, -(2**63))
NONE = (math.nan, math.inf, -math.inf)


def strict(value: Any) -> Any:
    """As JSON that any reader holds: exact numbers, and no words for what is none."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(msgspec.json.encode(value), parse_constant=refuse)
    for name, number in numbers_in(found):
        assert name in IDENTITIES or abs(number) < 2**53, f"{name} is {number}"
    return found


def numbers_in(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from numbers_in(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from numbers_in(each, name)
    elif isinstance(value, int):
        yield name, value


def views_of(machine: Machine) -> Views:
    class Here:
        """As much of a hub as views read."""

        durable = machine.index
        journal = type("Journal", (), {"size_bytes": staticmethod(lambda: 0)})()
        history: tuple[()] = ()

        @staticmethod
        def clock() -> float:
            return 1000.0

    hub: Any = Here()
    hub.machine = machine
    return Views(hub, RequestStats(), BarrierStats(), JournalStats(), version="1")


def read_by_all(machine: Machine) -> Any:
    """Every list that shows the state, as each reader gets it."""
    views = views_of(machine)
    found = strict(views.dashboard(None, 1000))
    metrics.exposition(views)
    for job in machine.state.jobs.values():
        for dataset in job.datasets.values():
            owned = machine.volatile.ownerships.of(job.job, dataset, job.world.view)
            translate.ledger(job, dataset, 0, 1000, owned)
        for attempt in job.attempts.values():
            translate.add_parts(translate.checkpoint(attempt), attempt, sorted(attempt.parts))
        here: Any = type("Hub", (), {"machine": machine})
        Worlds(here).page(pb.GetWorldRequest(job_id=job.job))
    told = [
        registered(translate.dataset(each)) for job in machine.state.jobs.values() for each in job.datasets.values()
    ]
    draw_table(told)
    for each in told:
        strict(document(each))
    return found


def position_with(field: str, number: Any) -> dict[str, Position]:
    return {"images": Position(**{"version": 1, "epoch": 0, "consumed": [0, 5], field: number})}


def numbers_of(kind: type[Event]) -> list[tuple[str, Callable[[Any], Any]]]:
    """The fields of an event that hold numbers, and how a number is put there."""
    found: list[tuple[str, Callable[[Any], Any]]] = []
    for name, hint in get_type_hints(kind).items():
        if hint in (int, float, int | None, float | None):
            found.append((name, lambda number: number))
        elif hint == dict[str, float]:
            found.append((name, lambda number: {"gpu": float(number)}))
        elif hint == dict[str, Position]:
            found += [(name, partial(position_with, field)) for field in ("version", "epoch", "left_out")]
    return found


ALL = [(kind, name, put) for kind in SOUND for name, put in numbers_of(kind)]


@pytest.mark.parametrize(("kind", "name", "put"), ALL, ids=[f"{kind.__name__}.{name}" for kind, name, _ in ALL])
def test_what_the_door_lets_in_every_reader_holds(kind: type[Event], name: str, put: Callable[[Any], Any]) -> None:
    """As the machine decides, and as the fast paths do, which do not look at each field."""
    is_whole = get_type_hints(kind)[name] in (int, int | None, dict[str, Position])
    for extreme in WHOLE if is_whole else (*WHOLE, *NONE):
        cluster = a_cluster()
        wrong = event(kind, **{name: put(extreme)})
        for decide in (cluster.machine.handle, cluster.machine.decide):
            with suppress(StrataError):
                decide(wrong, cluster.now)
        read_by_all(cluster.machine)


@pytest.mark.parametrize("number", NONE)
def test_numbers_that_are_none_are_refused_by_name(number: float) -> None:
    cluster = a_cluster()
    for kind, name, put in ALL:
        if get_type_hints(kind)[name] in (float, float | None, dict[str, float]):
            with pytest.raises(InvalidInput, match=r"timeout|within|gpu"):
                cluster.machine.handle(event(kind, **{name: put(number)}), cluster.now)
            with pytest.raises(InvalidInput, match=r"timeout|within|gpu"):
                cluster.machine.decide(event(kind, **{name: put(number)}), cluster.now)


# -- what an older version let in ------------------------------------------------------------------------------------


def dataset(name: str, **numbers: int) -> DatasetRegistered:
    told: dict[str, Any] = {"total_samples": 10, "shard_size": 2, "seed": 0, "version": 1} | numbers
    return DatasetRegistered(
        JOB, name, shuffle=False, path="/d", format="csv", strategy="slots-v1", order="elastic", reason="", **told
    )


@pytest.mark.parametrize("numbers", [{"shard_size": 2**63 - 1}, {"total_samples": 2**62, "shard_size": 2**61}])
def test_a_dataset_of_an_older_journal_hides_no_other(
    numbers: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster()
    cluster.machine.apply(JobOpened(JOB))
    for record in (dataset("before"), dataset("huge", **numbers), dataset("later")):
        cluster.machine.apply(record)
    job = cluster.machine.state.jobs[JOB]
    told = [registered(translate.dataset(each)) for each in job.datasets.values()]
    draw_table(told)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("before", "huge", "later"))
    assert [document(each)["shard_count"] for each in told] == [5, 1 if "total_samples" not in numbers else 2, 5]
    rows = views_of(cluster.machine).dashboard(None, 1000).datasets
    assert [each.dataset_id for each in rows] == ["before", "huge", "later"]
    json.loads(msgspec.json.encode(rows))


def test_parts_that_are_more_than_64_bits_together_hide_no_other_checkpoint() -> None:
    """An older version took parts of a petabyte."""
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=1)
    attempt = cluster.begin(workers[0], step=2).attempt
    for rank in range(20_000):
        cluster.machine.apply(PartAcknowledged(JOB, attempt, rank, f"w{rank}", rank + 1, "xxh3-128:aa", 2**50))
    found = cluster.machine.state.jobs[JOB].attempts[attempt]
    assert translate.checkpoint(found).total_bytes == 2**63 - 1
    rows = views_of(cluster.machine).dashboard(None, 1000).checkpoints
    assert [each.step for each in rows] == [2, 1]
    msgspec.json.encode(rows)


def test_a_hub_shows_everybody_beside_a_worker_whose_numbers_are_none(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        for name in ("w0", "w1"):
            who = register(hub, name)
            beat = event(next(kind for kind in SOUND if kind.__name__ == "HeartbeatReceived"))
            said = {"job": "job", "worker": name, "incarnation": who.incarnation, "resources": {"power": math.nan}}
            with pytest.raises(InvalidInput, match="resource 'power' must be a finite number, not nan"):
                hub.ask(msgspec.structs.replace(beat, **said), trusted=True)
        views = Views(hub, RequestStats(), BarrierStats(), JournalStats(), version="1")
        assert [each["worker_id"] for each in strict(list(views.workers()))] == ["w0", "w1"]

    run(tmp_path, work)
