"""The command line as a process of its own or within this one, and what it told."""

import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TypeAlias
from unittest.mock import patch

from strata.cli import main
from tests.until import until

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


def terminated_while_it_copies(*arguments: str | Path, to: Path) -> Told:
    """A command that copies something large, terminated once a part of it is in the folder `to`."""
    command = [STRATA, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as copying:
        try:
            until(lambda: list(to.glob(".strata-tmp/*.part")) or copying.poll() is not None)
            copying.terminate()
            _, said = copying.communicate(timeout=60)
        finally:
            copying.kill()
    return subprocess.CompletedProcess(command, copying.returncode, b"", said)


def strata_here(*arguments: str | Path, cwd: Path | None = None, answer: bytes = b"", **environment: str) -> Told:
    """The same in this process, by the same entry: a second of imports for each command would be most of a test."""
    output, wrong = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    words = ["strata", *map(str, arguments)]
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", words),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(answer), "utf-8")),
        redirect_stdout(output),
        redirect_stderr(wrong),
        chdir(cwd or Path.cwd()),
        _process_kept(),
    ):
        code = _ended()
    for stream in (output, wrong):
        stream.flush()
    told, said = output.buffer, wrong.buffer
    assert isinstance(told, io.BytesIO)
    assert isinstance(said, io.BytesIO)
    return subprocess.CompletedProcess(words, code, told.getvalue(), said.getvalue())


def _ended() -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


@contextmanager
def _process_kept() -> Iterator[None]:
    """What the command line makes its own in a process: signals, and the log."""
    root = logging.getLogger()
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers, level, servers = root.handlers[:], root.level, logging.getLogger("uvicorn").level
    try:
        yield
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("uvicorn").setLevel(servers)


def as_text(told: Told) -> "subprocess.CompletedProcess[str]":
    return subprocess.CompletedProcess(told.args, told.returncode, told.stdout.decode(), told.stderr.decode())


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
