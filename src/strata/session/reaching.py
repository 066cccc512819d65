"""A process that waits for a place in its job: what keeps it is said soon, and now and then, and not in silence.

A coordinator may be started later than its workers, and so may its name be known later: neither is an error at once. A
name that nobody knows after a minute is one that was written wrongly.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from strata.errors import InvalidInput
from strata.logs import get_logger
from strata.rpc.addresses import split_address

logger = get_logger("strata.session")

SAY_SECONDS = 3.0
AGAIN_SECONDS = 30.0
NAME_SECONDS = 60.0


async def tell_of_waiting(who: str, where: str, refusal: Callable[[], str], within: float) -> NoReturn:
    """Until it is cancelled. `where`: the addresses, with commas between; `refusal`: what the coordinator said against
    it, if that was heard. InvalidInput if for a minute none of them can be found."""
    began, pause = time.monotonic(), SAY_SECONDS
    while True:
        await asyncio.sleep(pause)
        unknown = await unknown_names(where)
        if unknown and time.monotonic() - began >= NAME_SECONDS:
            raise InvalidInput(f"{who} finds no coordinator: {unknown}. Look at coordinator_url, or COORDINATOR_URL")
        why = refusal() or unknown or f"the coordinator at {where} does not answer. Is it running, and is that it?"
        logger.warning("%s has no place in its job yet, and tries for %g s: %s", who, within, why)
        pause = AGAIN_SECONDS


async def unknown_names(where: str) -> str:
    """Which of the names cannot be resolved, if that is all of them; else nothing."""
    addresses = [each.strip() for each in where.split(",")]
    found = [await _why_unknown(each) for each in addresses]
    return "; ".join(found) if all(found) else ""


async def _why_unknown(address: str) -> str:
    if address.startswith("unix:"):
        return ""
    host, port = split_address(address)
    try:
        await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        told = error.strerror if isinstance(error, socket.gaierror) else str(error)
        return f"the name {host!r} cannot be resolved ({told})"
    except OSError:
        return ""
    return ""
