"""A channel to the coordinator that the configuration names."""

from strata.config import Config
from strata.rpc import Channel, ChannelOptions, ClientTls
from strata.wire.addresses import HERE, parse_url
from strata.wire.tokens import token_of

_FILES = {"ca": "tls_ca", "certificate": "tls_certificate", "key": "tls_key"}


def channel_to(config: Config, options: ChannelOptions | None = None) -> Channel:
    """The token is read anew for each call: it may be replaced while this process runs."""
    where = parse_url(config["coordinator_url"] or HERE)
    tls = ClientTls(**{name: config[setting] or None for name, setting in _FILES.items()}) if where.tls else None
    return Channel(where.addresses, token=lambda: token_of(config), tls=tls, options=options)
