"""`strata ckpt ls`: what a manifest says is shown, whatever it says."""

import math

import pytest

from strata.checkpoint.manifest import Metadata, PartRef
from strata.checkpoint.overview import Listed, Overview
from strata.checkpoint.store import Folder
from strata.cli.ckpt_look import document, draw_table


def listed(step: int, unix_seconds: float) -> Listed:
    part = PartRef(0, "part-0.json", 1, "xxh3-128:aa", 2**62, 2**62)
    metadata = Metadata(1, "gpt", step, 0, 1, "a", unix_seconds, 1, {"loss": math.nan}, [part], [], "0.1.0")
    return Listed(Folder(step), metadata, on_line=True)


@pytest.mark.parametrize("unix_seconds", [1e300, -1e300, 1e15])
def test_a_time_that_never_was_hides_no_other_checkpoint(
    unix_seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [listed(1, 0.0), listed(2, unix_seconds)]
    draw_table(Overview("/root", rows), rows)
    shown = capsys.readouterr().out
    assert "1970" in shown or "1969" in shown
    assert "a time that never was" in " ".join(shown.split())
    assert [document(each)["saved"] for each in rows] == ["1970-01-01T00:00:00+00:00", None]
