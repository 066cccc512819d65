"""Pages of who is there: every peer once, within the size of a message, and nothing of it before it is durable."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.coordinator import worlds
from strata.coordinator.hub import Hub
from strata.coordinator.service import coordinator_service
from strata.core.events import DeregisterRequested
from strata.core.membership import MAX_METADATA_CHARS, MAX_METADATA_ENTRIES
from strata.core.shapes import MAX_TEXT
from strata.errors import StaleGeneration
from strata.rpc import Later, RpcError
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import from_rpc
from tests.unit.coordinator.hubs import SlowJournal, register, run

MESSAGE_BYTES = 4 << 20
WIDE = "\N{BAR CHART}"
"""A character of four bytes: the most that one takes."""


def asked(hub: Hub, **fields: Any) -> Any:
    """What the service gives for this question: bytes, or a Later."""
    (method,) = [each for each in coordinator_service(hub) if each.path.endswith("/GetWorld")]
    return method.handler(pb.GetWorldRequest(job_id="job", **fields), None)


def pages(hub: Hub) -> Iterator[tuple[int, pb.GetWorldResponse]]:
    """Each page with its bytes, as a client goes through them."""
    rank = 0
    while True:
        said = asked(hub, from_rank=rank, generation=hub.machine.state.job("job").world.generation)
        page = pb.GetWorldResponse.FromString(said)
        yield len(said), page
        if not page.HasField("next_rank"):
            return
        rank = page.next_rank


def test_ten_thousand_workers_are_told_in_pages_of_a_thousand(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        metadata = {"zone": "eu-central-1b", "host": "node-17.cluster.example", "gpu": "H100 80GB", "build": "f" * 40}
        for rank in range(10_000):
            register(hub, f"w{rank}", rank=rank, world_size=10_000, ip="10.1.2.3", port=7000, metadata=metadata)
        await hub.settled()
        sizes, told = zip(*pages(hub), strict=True)
        assert [len(page.peers) for page in told] == [1000] * 10
        assert [each.rank for page in told for each in page.peers] == list(range(10_000))
        assert max(sizes) < MESSAGE_BYTES / 4

    run(tmp_path, work)


def test_workers_that_say_as_much_as_they_may_are_told_in_smaller_pages(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        each = MAX_METADATA_CHARS // MAX_METADATA_ENTRIES - 2
        metadata = {f"{number:02}": WIDE * each for number in range(MAX_METADATA_ENTRIES)}
        for rank in range(130):
            register(hub, f"w{rank}", rank=rank, world_size=130, ip=WIDE * MAX_TEXT, metadata=metadata)
        await hub.settled()
        sizes, told = zip(*pages(hub), strict=True)
        assert [each.rank for page in told for each in page.peers] == list(range(130))
        assert len(told) > 3
        assert max(sizes) < worlds.PAGE_BYTES + 8 * worlds.PEERS_AT_ONCE < MESSAGE_BYTES

    run(tmp_path, work)


def test_what_a_peer_says_of_itself_later_is_told_to_whoever_asks_then(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        told = worlds.Worlds(hub)
        for ip in ("", "10.1.2.3"):
            register(hub, "a", ip=ip)
            page = pb.GetWorldResponse.FromString(told.page(pb.GetWorldRequest(job_id="job")))
            assert [each.ip for each in page.peers] == [ip]

    run(tmp_path, work)


def test_one_peer_alone_is_told_whatever_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "PAGE_BYTES", 10)

    async def work(hub: Hub, journal: SlowJournal) -> None:
        for name in ("a", "b", "c"):
            register(hub, name, metadata={"about": "x" * 100})
        await hub.settled()
        assert [[each.worker_id for each in page.peers] for _, page in pages(hub)] == [["a"], ["b"], ["c"]]

    run(tmp_path, work)


def test_an_answer_waits_until_what_it_shows_is_durable(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        register(hub, "a")
        await hub.settled()
        journal.may_write.clear()
        register(hub, "b", ip="10.0.0.2")
        told, refused = asked(hub), asked(hub, generation=1)
        assert isinstance(told, Later)
        assert isinstance(refused, Later)
        journal.may_write.set()
        page = pb.GetWorldResponse.FromString(await told)
        assert [(each.worker_id, each.ip) for each in page.peers] == [("a", ""), ("b", "10.0.0.2")]
        with pytest.raises(RpcError, match="generation 1, but job 'job' is in generation 2") as error:
            await refused
        assert isinstance(from_rpc(error.value), StaleGeneration)

    run(tmp_path, work)


def test_a_page_that_is_kept_is_another_once_the_world_is(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who = [register(hub, name) for name in ("a", "b")]
        await hub.settled()
        handler = next(each.handler for each in coordinator_service(hub) if each.path.endswith("/GetWorld"))
        question = pb.GetWorldRequest(job_id="job")
        first = handler(question, None)
        assert handler(question, None) is first, "made once for all who ask"
        hub.ask(DeregisterRequested("job", "a", who[0].incarnation))
        await hub.settled()
        page = pb.GetWorldResponse.FromString(handler(question, None))
        assert [each.worker_id for each in page.peers] == ["b"]
        assert page.generation > pb.GetWorldResponse.FromString(first).generation

    run(tmp_path, work)


def test_a_coordinator_that_is_back_tells_the_same_world_in_another_term(tmp_path: Path) -> None:
    told: list[pb.GetWorldResponse] = []

    async def first(hub: Hub, journal: SlowJournal) -> None:
        register(hub, "a", ip="10.0.0.1", port=7000, gpu_count=8, metadata={"zone": "b"})
        await hub.settled()
        told.append(pb.GetWorldResponse.FromString(asked(hub)))

    async def second(hub: Hub, journal: SlowJournal) -> None:
        told.append(pb.GetWorldResponse.FromString(asked(hub)))

    run(tmp_path, first)
    run(tmp_path, second)
    before, after = told
    assert (before.term, after.term) == (1, 2)
    before.term = after.term
    assert before == after
    assert after.peers[0].metadata == {"zone": "b"}
