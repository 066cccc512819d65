"""One session for all that a process does in a job: two would take the worker's name from each other.

A process that ends leaves its jobs, also if nobody said so. One that ends in an error is told of as one that failed;
and so is, by its helper, one that was killed, or that another Python started, which knows alone how it ended.
"""

import multiprocessing
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

from strata import background
from strata.config import Config
from strata.errors import InvalidInput
from strata.session.pulse import Pulse
from strata.session.session import Parting, Session, Who
from strata.wire.connecting import channel_to

LAST_SECONDS = 3.0
"""The longest that a process which ends tells a coordinator so."""
DONE = "it is done"
ENDED = "its process ended by itself"


@dataclass(slots=True)
class _Shared:
    session: Session
    config: Config
    users: int


lock = threading.Lock()
_shared: dict[tuple[int, str, str, str], _Shared] = {}
_active: list[Session] = []
"""Those of orchestrators, the newest last."""
_parents: list[object] = []
"""Kept in a forked child: what these hold cannot be tidied up there, where the threads that it needs are not."""


def _forget() -> None:
    """In a child: whoever held the lock does not live there, and a session of its parent is none of its own."""
    global lock, _shared, _active
    _parents.extend((_shared, _active))
    lock, _shared, _active = threading.Lock(), {}, []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def join(config: Config, who: Who, *, stall_seconds: float | None = None, **about: Any) -> Session:
    """This process's session as that worker, which begins with the first who asks. `leave` gives it back. `about`: what
    the coordinator is told of it then. With `stall_seconds`, a helper keeps heartbeats going while this process cannot,
    for so long at most."""
    key = _key(config["coordinator_url"], who)
    with lock:
        known = _shared.get(key)
        if known is None:
            known = _shared[key] = _Shared(Session(channel_to(config), who, **about), config, 0)
            known.session.start()
        elif known.session.who != who:
            raise InvalidInput(
                f"this process is in job {who.job!r} already, as {known.session.who}: it cannot be {who}, too"
            )
        return _used(known, stall_seconds)


def _used(known: _Shared, stall_seconds: float | None) -> Session:
    if stall_seconds is not None:
        known.session.use(Pulse(known.config, known.session.who, stall_seconds=stall_seconds))
    known.users += 1
    return known.session


def join_again(session: Session, *, stall_seconds: float | None = None) -> Session:
    """For one more who needs it, until that one leaves."""
    with lock:
        known = next((each for each in _shared.values() if each.session is session), None)
        if known is None:
            raise InvalidInput(f"worker {session.who.worker!r} has left its job")
        return _used(known, stall_seconds)


def activate(session: Session) -> None:
    """Whoever of this process needs a session, and says nothing of its job, takes part in this one."""
    with lock:
        _active.append(session)


def deactivate(session: Session) -> None:
    """Not any more, for the orchestrator that said so. Others of this process may stay in it."""
    with lock:
        if session in _active:
            _active.remove(session)


def active() -> Session | None:
    """That one. A forked child has none of its parent's."""
    with lock:
        mine = {id(each.session) for key, each in _shared.items() if key[0] == os.getpid()}
        return next((session for session in reversed(_active) if id(session) in mine), None)


def leave(session: Session, reason: str = "") -> None:
    """The last one who leaves takes the worker out of the job. Without a reason it is as `ends` said."""
    with lock:
        key, known = next((each for each in _shared.items() if each[1].session is session), (None, None))
        if key is None or known is None or key[0] != os.getpid():  # a forked child's parent is still there
            return
        known.users -= 1
        if known.users:
            return
        del _shared[key]
    why = Parting(reason) if reason else session.parting
    background.run_while_alive(lambda: session.close(why.reason or DONE, died=why.died))


def ends(reason: str, *, died: bool = False) -> None:
    """How the work of this process ended: told when it leaves. `died`: it failed. No reason: it goes on."""
    for session in _own():
        session.parting = Parting(reason, died)


def _own() -> list[Session]:
    """A forked child has none of its parent's."""
    with lock:
        return [each.session for key, each in _shared.items() if key[0] == os.getpid()]


def leave_all() -> None:
    """Python ends. What is not known to have ended well is left to the helper, which tells that the process is gone."""
    for session in _own():
        why = _parting(session)
        if why.reason and session.registered is not None:
            background.run(session.close(why.reason, died=why.died, within=LAST_SECONDS))


def _parting(session: Session) -> Parting:
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # at a prompt an error ends nothing
    if isinstance(error, Exception):
        return Parting(f"{type(error).__name__}: {error}", died=True)
    if error is not None:
        return Parting(f"it was interrupted: {type(error).__name__}")
    is_another_pythons = multiprocessing.parent_process() is not None  # which ends alike in both cases
    return session.parting if session.parting.reason or is_another_pythons else Parting(ENDED)


background.at_the_end(leave_all)


def _key(url: str, who: Who) -> tuple[int, str, str, str]:
    """A forked child has none of its parent's."""
    return os.getpid(), url, who.job, who.worker
