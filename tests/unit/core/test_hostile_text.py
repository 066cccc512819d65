"""Names hold nothing that a terminal obeys; reasons and values may, and are kept as they were said."""

import re
from typing import Any

import pytest

from strata.core.events import (
    CheckpointAck,
    DatasetRegisterRequested,
    DeregisterRequested,
    EpochAdvanceRequested,
    Event,
    HeartbeatReceived,
    PinRequested,
    RegisterRequested,
)
from strata.core.ids import check_plain
from strata.errors import InvalidInput
from tests.unit.core.cluster import Cluster
from tests.unit.core.test_wrong_input import a_cluster, event

OBEYED = "\x00\t\n\r\x1b\x7f\x85\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"


def decide(cluster: Cluster, wrong: Event) -> None:
    """As the coordinator does with a small request: nothing but the rules looks at its texts."""
    cluster.machine.decide(wrong, cluster.now)


@pytest.mark.parametrize("character", [*OBEYED, "\ud800"])
def test_what_a_terminal_obeys_is_named(character: str) -> None:
    named = re.escape(f"ip has U+{ord(character):04X} as character 3: {f'10{character}[2J'!r}")
    with pytest.raises(InvalidInput, match=named):
        check_plain(f"10{character}[2J", "ip")


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", "[/x] :smile: \\x1b", "naïve ✓ 損失 עברית \U0001f469\u200d\U0001f680", "\xa0"]
)
def test_other_text_is_taken(text: str) -> None:
    assert check_plain(text, "ip") == text


NAMES: list[tuple[type[Event], dict[str, Any], str]] = [
    (RegisterRequested, {"ip": "{}"}, "ip"),
    (RegisterRequested, {"metadata": {"{}": ""}}, "a key of metadata"),
    (RegisterRequested, {"job": "a{}"}, "job_id"),
    (RegisterRequested, {"worker": "a{}"}, "worker_id"),
    (RegisterRequested, {"nonce": "a{}"}, "nonce"),
    (HeartbeatReceived, {"resources": {"{}": 1.0}}, "a key of resources"),
    (DatasetRegisterRequested, {"path": "/data/{}"}, "path"),
    (DatasetRegisterRequested, {"path": "/data/a\n/data/{}"}, "path"),
    (DatasetRegisterRequested, {"format": "{}"}, "format"),
    (DatasetRegisterRequested, {"fingerprint": "{}"}, "fingerprint"),
    (DatasetRegisterRequested, {"dataset": "a{}"}, "dataset_id"),
    (EpochAdvanceRequested, {"asked_by": "{}"}, "asked_by"),
    (CheckpointAck, {"digest": "{}"}, "digest"),
    (CheckpointAck, {"metrics": {"{}": "1"}}, "the name of a metric"),
    (PinRequested, {"name": "a{}"}, "the name of a pin"),
]


def filled(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {name.format(text): each for name, each in value.items()}
    return value.format(text)


@pytest.mark.parametrize(("kind", "fields", "what"), NAMES, ids=[f"{kind.__name__}-{what}" for kind, _, what in NAMES])
@pytest.mark.parametrize("obeyed", ["\x1b[2J", "\u202e", "\x00", "\r"], ids=ascii)
def test_no_name_holds_what_a_terminal_obeys(kind: type[Event], fields: dict[str, Any], what: str, obeyed: str) -> None:
    cluster = a_cluster()
    before = cluster.machine.snapshot()
    with pytest.raises(InvalidInput, match=f"^{what} ") as refusal:
        decide(cluster, event(kind, **{name: filled(value, obeyed) for name, value in fields.items()}))
    assert str(refusal.value).isprintable()
    assert f"U+{ord(obeyed[0]):04X}" in str(refusal.value) or ascii(obeyed[0])[1:-1] in str(refusal.value)
    assert cluster.machine.snapshot() == before


def test_of_several_paths_each_is_a_line() -> None:
    cluster = a_cluster()
    cluster.send(event(DatasetRegisterRequested, dataset="two", path="/data/a\n/data/b"))
    assert cluster.job.datasets["two"].path == "/data/a\n/data/b"


def test_reasons_and_values_are_kept_as_they_were_said() -> None:
    said = "[/__w/pair.cc:553] \x1b[2J\nclosed\u202e"
    cluster = Cluster()
    worker = cluster.register("w0", metadata={"log": said})
    cluster.from_worker(DeregisterRequested, worker, reason=said)
    member = cluster.job.world.members["w0"]
    assert member.metadata == {"log": said}
    assert said in member.reason
