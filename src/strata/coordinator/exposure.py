"""Who can reach an address."""

import ipaddress

from strata.rpc.addresses import split_address


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    if address.startswith("unix:"):
        return True
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
