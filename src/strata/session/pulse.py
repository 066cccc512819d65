"""A process's side of the helper that speaks for it while it cannot itself: see `keepalive`.

A thread of this process sends no heartbeats while another holds Python's lock; another process does. It is told what
the coordinator was told, and that costs one small write. Nothing here ever waits, or fails whoever calls it: a worker
without a helper is one that must be heard from itself.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import strata
from strata.config import Config
from strata.errors import InvalidInput
from strata.logs import get_logger
from strata.session.lines import Beat, Goodbye, Hello, Left, Line, Tick, encoded
from strata.session.session import Who
from strata.session.watching import started_at
from strata.v1 import coordinator_pb2 as pb
from strata.wire.tokens import token_is_in_file

logger = get_logger("strata.session")

STALL_SECONDS = 60.0
STARTS = 4
"""Of the helper, in all: one that ends again and again is given up."""

_FILES = ("tls_ca", "tls_certificate", "tls_key")


class Pulse:
    """`start` it in the process that is to be watched; `beat` whenever the coordinator has answered; `close` it when
    the worker has left, else its end is told as its death. A forked child may call all of it: nothing happens there.

    stall_seconds: who holds Python's lock for longer counts as hung, and its lease runs out.
    """

    def __init__(self, config: Config, who: Who, *, stall_seconds: float = STALL_SECONDS) -> None:
        if not stall_seconds > 0:
            raise InvalidInput(f"stall_seconds must be above 0, not {stall_seconds!r}")
        self._config, self._who, self._stall_seconds = config, who, stall_seconds
        self._process = 0
        self._pipe = -1
        self._starts = 0
        self._beat: Beat | None = None

    def start(self) -> None:
        if self._process:
            return
        self._process = os.getpid()
        why = _why_not()
        if why:
            logger.warning("worker %s has no helper that keeps its heartbeats going: %s", self._who.worker, why)
            return
        self._launch()

    def beat(
        self, registered: pb.RegisterResponse, state: int = 0, step: int | None = None, epoch: int | None = None
    ) -> None:
        """The coordinator has just answered a registration, or a heartbeat that said this."""
        incarnation, seconds = registered.incarnation, registered.heartbeat_seconds
        self._beat = Beat(incarnation, seconds, time.monotonic(), state, step, epoch)
        self._say(self._beat)

    def tick(self) -> None:
        """It did not answer, but this process runs."""
        self._say(Tick(time.monotonic()))

    def left(self) -> None:
        """The incarnation is over."""
        self._beat = None
        self._say(Left())

    def close(self) -> None:
        """The helper ends."""
        if self._process == os.getpid() and self._pipe >= 0:
            with suppress(OSError):
                os.write(self._pipe, encoded(Goodbye()))
            self._forget()

    # -- the helper --------------------------------------------------------------------------------------------------

    def _say(self, line: Line) -> None:
        if self._process != os.getpid() or self._pipe < 0:
            return
        try:
            os.write(self._pipe, encoded(line))
        except BlockingIOError:
            logger.debug("the helper of %s has not read for long", self._who.worker)  # what comes next is newer
        except OSError:
            self._start_again(line)

    def _start_again(self, line: Line) -> None:
        self._forget()
        if self._starts >= STARTS:
            told = "the helper of worker %s ended %d times: heartbeats go on from this process alone"
            logger.error(told, self._who.worker, self._starts)
            return
        logger.warning("the helper of worker %s ended: another is started", self._who.worker)
        self._launch()
        if self._beat is not None and self._beat is not line:
            self._say(self._beat)
        self._say(line)

    def _launch(self) -> None:
        self._starts += 1
        try:
            theirs, self._pipe = os.pipe()
        except OSError as error:
            logger.warning("the helper of worker %s cannot be started: %s", self._who.worker, error)
            return
        os.set_blocking(self._pipe, False)
        self._say(self._hello())
        starting = threading.Thread(target=_run, args=(self._process, theirs), name="strata-pulse", daemon=True)
        try:
            starting.start()
        except RuntimeError as error:  # there is no room for a thread, or Python is ending
            logger.warning("the helper of worker %s cannot be started: %s", self._who.worker, error)
            os.close(theirs)

    def _hello(self) -> Hello:
        return Hello(
            self._who.job, self._who.worker, started_at(self._process), self._stall_seconds, _settings(self._config)
        )

    def _forget(self) -> None:
        os.close(self._pipe)
        self._pipe = -1


def _why_not() -> str:
    """Empty where a helper can be started."""
    if not hasattr(os, "fork"):
        return "that needs Linux or macOS"
    name = Path(sys.executable or "").name.lower()
    if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
        return f"this process was not started by a Python that could be started again ({sys.executable!r})"
    return ""


def _run(pid: int, pipe: int) -> None:
    """Starts it, and waits for the process that starts it: the helper itself is nobody's child."""
    command = [sys.executable, "-P", "-m", "strata.session.keepalive", str(pid)]
    try:
        starting = subprocess.Popen(
            command, stdin=pipe, stdout=subprocess.DEVNULL, env=_environment(), start_new_session=True
        )
    except OSError as error:
        logger.warning("the helper %s cannot be started: %s", " ".join(command), error)
        return
    finally:
        os.close(pipe)
    starting.wait()


def _environment() -> dict[str, str]:
    """As this process has it; and where Strata lies, unless Python knows by itself."""
    home = Path(strata.__file__).parents[1]
    if home.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(home), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _settings(config: Config) -> dict[str, str]:
    """Where the coordinator is, and what that wants to see. A token in a file may be replaced: so the file is told."""
    found = {name: os.path.abspath(config[name]) if config[name] else "" for name in _FILES}
    if token_is_in_file(config):
        found |= {"token": "", "token_file": os.path.abspath(config["token_file"])}
    else:
        found |= {"token": config["token"], "token_file": ""}
    return found | {"coordinator_url": config["coordinator_url"]}
