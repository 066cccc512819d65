"""The command line as a process of its own, and what it told."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

STRATA = Path(sys.executable).with_name("strata")
Told: TypeAlias = "subprocess.CompletedProcess[bytes]"


def strata(*arguments: str | Path, cwd: Path | None = None, answer: bytes = b"", **environment: str) -> Told:
    return subprocess.run(
        [STRATA, *arguments],
        capture_output=True,
        check=False,
        cwd=cwd,
        timeout=120,
        input=answer,
        env=os.environ | environment,
    )


def lines(told: Told) -> list[str]:
    assert told.returncode == 0, told.stderr.decode()
    return told.stdout.decode().splitlines()


def refusal(told: Told) -> str:
    assert told.returncode == 2
    assert told.stdout == b""
    words = told.stderr.decode()
    assert words.startswith("error: ")
    assert "Traceback" not in words
    return words
