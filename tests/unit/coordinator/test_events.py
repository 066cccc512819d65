"""The log: every record has words or is left out on purpose, and its id leads back to it."""

import pytest

from strata.coordinator.events import UNREMARKABLE, event_id, event_of, index_of
from strata.coordinator.replay import Entry
from strata.core.records import SituationChanged, WorkerLost, every_record
from tests.unit.core.test_replay_hashseed import scenario


def test_every_kind_of_record_is_told_or_left_out() -> None:
    told = {}
    for index, record in enumerate(scenario().records):
        event = event_of(Entry(index, 3, 1000.0, record))
        if event is not None:
            told[type(record)] = event
            assert event.id == f"3-{index}"
            assert event.message
            assert "<" not in event.message, "no Python in words for people"
            assert event.severity in ("info", "warning", "error")
    assert set(told) == set(every_record()) - set(UNREMARKABLE)


@pytest.mark.parametrize(
    ("cause", "severity"), [("left", "info"), ("died", "error"), ("expired", "error"), ("superseded", "error")]
)
def test_who_left_is_no_alarm_and_who_was_lost_is(cause: str, severity: str) -> None:
    event = event_of(Entry(0, 1, 0.0, WorkerLost("j", "w", 1, 0, cause, 2, "why")))
    assert event is not None
    assert (event.kind, event.severity, event.worker_id) == ("worker_lost", severity, "w")


def test_a_situation_is_a_warning_where_something_holds_the_job_back() -> None:
    for held_back, severity in ((True, "warning"), (False, "info")):
        event = event_of(Entry(0, 1, 0.0, SituationChanged("j", "s", "waits for w1", held_back)))
        assert event is not None
        assert (event.message, event.severity) == ("the job waits for w1", severity)


def test_an_id_leads_back() -> None:
    assert index_of(event_id(7, 1234)) == 1234
    for wrong in ("", "7", "7-", "-7", "a-b", "1-2-3", "1-" + "9" * 30):
        assert index_of(wrong) is None
