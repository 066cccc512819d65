"""Log messages that quote what others said."""

import logging
import sys

import pytest

from strata.cli.coordinator import TextLines
from strata.logs import get_logger

HOSTILE = "[/x] \x1b[2J\u202e\r\n12:00:00 ERROR forged"
ESCAPED = r"[/x] \x1b[2J\u202e\r\n12:00:00 ERROR forged"


@pytest.mark.parametrize("said", [HOSTILE, ValueError(HOSTILE)])
def test_a_message_is_one_line(caplog: pytest.LogCaptureFixture, said: object) -> None:
    get_logger("strata.checkpoint").warning("rank %d said: %s", 1, said)
    assert caplog.messages == [f"rank 1 said: {ESCAPED}"]


def test_a_usual_message_stays_a_template_with_arguments(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("strata.checkpoint").warning("step %d: %s ✓", 1, "[red]")
    (record,) = caplog.records
    assert (record.msg, record.args) == ("step %d: %s ✓", (1, "[red]"))


def test_the_log_of_a_coordinator_has_no_line_that_another_wrote() -> None:
    """Also of what other packages log, and of errors with words of a worker in them."""
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError:
        raised = sys.exc_info()
    record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "in %s", (HOSTILE,), raised)
    first, *others = TextLines().format(record).split("\n")
    assert first.endswith(f"ERROR   in {ESCAPED}")
    assert others
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_no_line_of_a_traceback_passes_for_another_message(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError:
        get_logger("strata.checkpoint").exception("a callback raised")
    told = logging.Formatter("%(message)s").format(caplog.records[0])
    first, second, *others = told.split("\n")
    assert (first, second) == ("a callback raised", "Traceback (most recent call last):")
    assert others
    assert all(line.startswith("  ") and line.isprintable() for line in others)
