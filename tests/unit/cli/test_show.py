"""What is shown of a coordinator that refuses, goes away, or has more than fits."""

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from strata.cli import show
from strata.cli.remote import Api
from strata.errors import StrataError

EVENT = {"id": "1-7", "unix_seconds": 0.0, "job_id": "j", "message": "w joined", "severity": "info"}


class _Api:
    """Answers each question with the next of what it is given: an error, or what the stream tells before it ends."""

    base = "http://here"

    def __init__(self, *answers: BaseException | list[tuple[str, Any]]) -> None:
        self._answers = iter(answers)
        self.asked_after: list[object] = []

    def stream(self, path: str, **parameters: object) -> Iterator[tuple[str, Any]]:
        self.asked_after.append(parameters["after"])
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        yield from answer


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def _followed(*answers: BaseException | list[tuple[str, Any]]) -> list[object]:
    api = _Api(*answers, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        show.follow_events(cast(Api, api), None, "", False)
    return api.asked_after


def test_a_refusal_is_said_once_and_again_when_it_comes_anew(capsys: pytest.CaptureFixture[str]) -> None:
    refused = [StrataError("1,000 watch already") for _ in range(3)]
    assert _followed(*refused, [("event", EVENT)], StrataError("1,000 watch already")) == ["", "", "", "", "1-7", "1-7"]
    told = capsys.readouterr()
    assert told.err.count("1,000 watch already (trying again for 60 s)") == 2
    assert "w joined" in told.out


def test_it_ends_with_the_reason_when_nothing_was_heard_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(StrataError, match="watch already"):
        show.follow_events(cast(Api, _Api(StrataError("1,000 watch already"))), None, "", False)


@pytest.mark.parametrize("cut", [["workers"], ["jobs", "workers"]])
def test_status_says_that_not_every_job_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cut: list[str]
) -> None:
    job = {"explanation": "job j trains", "held_back": False, "workers": 1, "world_size": 1, "generation": 1}
    told = {
        "coordinator": {"version": "0", "uptime_seconds": 1.0, "term": 1, "connections": 1},
        "metrics": {"requests_per_s": 1.0},
        "jobs": [job | {"latest_step": None}],
        "cut": cut,
    }
    monkeypatch.setattr(Api, "get", lambda *asked, **parameters: told)
    show.status()
    assert ("only the first 1 jobs are shown" in capsys.readouterr().out) == ("jobs" in cut)
