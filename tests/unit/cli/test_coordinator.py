"""What `strata coordinator` says when it has started."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from strata.cli.coordinator import announce, with_port
from strata.errors import InvalidInput

STARTED = SimpleNamespace(address="0.0.0.0:1", http="", term=1, jobs=0, workers=0, records_replayed=0, seconds=0.0)


@pytest.mark.parametrize(
    ("tokens", "guard"), [(False, "no token: anybody who reaches it may use it"), (True, "a token")]
)
def test_a_log_for_programs_says_what_guards_it_too(caplog: pytest.LogCaptureFixture, tokens: Any, guard: str) -> None:
    with caplog.at_level(logging.INFO, "strata.coordinator"):
        announce(SimpleNamespace(tokens=tokens, tls=None), STARTED, "json")
    assert [record.__dict__["fields"]["guard"] for record in caplog.records] == [guard]


def test_a_port_alone_is_no_host() -> None:
    assert with_port("somewhere") == "somewhere:50051"
    with pytest.raises(InvalidInput, match="47671 is a port and no host"):
        with_port("47671")
