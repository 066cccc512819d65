"""The example on the page on data that needs nothing else runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "DATA.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(import tempfile\n.*?)```", PAGE.read_text(), re.DOTALL)
    exec(program, {})
    assert capsys.readouterr().out.splitlines()[-2:] == ["[{'id': 2}]", "[{'id': 1500}]"]
