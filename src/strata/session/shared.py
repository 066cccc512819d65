"""One session for all that a process does in a job: two would take the worker's name from each other."""

import os
import threading
from dataclasses import dataclass

from strata import background
from strata.config import Config
from strata.errors import InvalidInput
from strata.session.session import Session, Who
from strata.wire.connecting import channel_to


@dataclass(slots=True)
class _Shared:
    session: Session
    users: int


_lock = threading.Lock()
_shared: dict[tuple[int, str, str, str], _Shared] = {}


def join(config: Config, who: Who) -> Session:
    """This process's session as that worker, which begins with the first who asks. `leave` gives it back."""
    key = _key(config["coordinator_url"], who)
    with _lock:
        known = _shared.get(key)
        if known is None:
            known = _shared[key] = _Shared(Session(channel_to(config), who), 0)
            known.session.start()
        elif known.session.who != who:
            raise InvalidInput(
                f"this process is in job {who.job!r} already, as {known.session.who}: it cannot be {who}, too"
            )
        known.users += 1
        return known.session


def leave(session: Session) -> None:
    """The last one who leaves takes the worker out of the job."""
    with _lock:
        key, known = next((each for each in _shared.items() if each[1].session is session), (None, None))
        if key is None or known is None or key[0] != os.getpid():  # a forked child's parent is still there
            return
        known.users -= 1
        if known.users:
            return
        del _shared[key]
    background.run_while_alive(session.close)


def _key(url: str, who: Who) -> tuple[int, str, str, str]:
    """A forked child has none of its parent's."""
    return os.getpid(), url, who.job, who.worker
