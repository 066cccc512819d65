"""Where a coordinator is, as people write it: `host:port`, `http://…`, `https://…`, or several with commas between."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from strata.core.paths import shown
from strata.errors import InvalidInput
from strata.rpc.addresses import join_address, split_address

GRPC_PORT = 50051
HERE = f"127.0.0.1:{GRPC_PORT}"


@dataclass(frozen=True, slots=True)
class CoordinatorUrl:
    """The addresses in the order in which they are tried, and whether they speak TLS."""

    addresses: tuple[str, ...]
    tls: bool

    @property
    def hosts(self) -> tuple[str, ...]:
        """Of each; this machine for a socket in its filesystem."""
        return tuple("127.0.0.1" if each.startswith("unix:") else split_address(each)[0] for each in self.addresses)


def parse_url(url: str) -> CoordinatorUrl:
    """InvalidInput says what is wrong with it."""
    parts = [part.strip() for part in url.split(",")]
    if not all(parts):
        raise InvalidInput(f"{url!r} is no address of a coordinator: give host:port, such as 127.0.0.1:{GRPC_PORT}")
    found = [_parsed(part) for part in parts]
    if len({tls for _, tls in found}) > 1:
        raise InvalidInput(f"{url!r} mixes https:// with others: all addresses must be of one kind")
    return CoordinatorUrl(tuple(address for address, _ in found), found[0][1])


def _parsed(part: str) -> tuple[str, bool]:
    if part.startswith("unix:"):
        return part, False
    scheme, separator, _ = part.partition("://")
    if separator and scheme not in ("http", "https"):
        raise InvalidInput(
            f"{shown(part)!r} begins with {scheme}://; a coordinator's address has http://, https:// or neither"
        )
    try:
        split = urlsplit(part if separator else f"http://{part}")
        host, port = split.hostname, split.port
    except ValueError as error:
        raise InvalidInput(f"{shown(part)!r} is no address of a coordinator: {error}") from error
    if (
        not host
        or any(each.isspace() for each in host)
        or split.username is not None
        or split.path.strip("/")
        or split.query
        or split.fragment
    ):
        raise InvalidInput(f"{shown(part)!r} is no address of a coordinator: give host:port and nothing more")
    return join_address(host, port or GRPC_PORT), scheme == "https" and bool(separator)
