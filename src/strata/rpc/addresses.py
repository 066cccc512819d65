"""Addresses as people write them."""

from strata.errors import InvalidInput


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`, or `:port` for every interface."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"{address!r} is no address: it looks like 127.0.0.1:50051, [::1]:50051 or unix:/path")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
