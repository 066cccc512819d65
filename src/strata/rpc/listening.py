"""The sockets that servers listen on."""

import errno
import os
import socket
import stat

from strata.errors import StrataError
from strata.rpc.addresses import join_address

BACKLOG = 4096
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Machines without IPv6 know a `localhost` of that kind all the same."""


def tcp_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address that the host has here, all on one port; an empty host is every interface."""
    made: list[socket.socket] = []
    absent: OSError | None = None
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, place in dict.fromkeys((family, place) for family, _, _, _, place in found):
            try:
                made.append(_tcp_socket(family, (place[0], port, *place[2:])))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
            else:
                port = made[0].getsockname()[1]  # one that was free, if it was 0
        if absent is not None and not made:
            raise absent
    except OSError as error:
        for listener in made:
            listener.close()
        raise StrataError(f"cannot listen on {join_address(host, port)}: {error.strerror or error}") from error
    return made


def _tcp_socket(family: int, place: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def unix_socket(path: str) -> socket.socket:
    """For this user alone. One that nobody listens on any more is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            made.bind(path)
        except OSError:
            if not _left_over(path):
                raise
            os.unlink(path)
            made.bind(path)
        os.chmod(path, 0o600)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise StrataError(f"cannot listen on unix:{path}: {error.strerror or error}") from error
    return made


def _left_over(path: str) -> bool:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):  # a file of somebody's
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
