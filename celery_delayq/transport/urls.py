"""Broker URLs: the schemes of this package, and what kombu has to be helped with.

| URL | kombu makes of it |
|---|---|
| `delayq://host:6379/0` | scheme `delayq`, everything parsed |
| `delayqs://host:6380/0` | scheme `delayqs`, everything parsed |
| `delayq+socket:///path/redis.sock` | scheme `delayq`, host name `socket:///path/...`, which its channel parses |
| `delayq+sentinel://host:26379/0;...` | scheme `delayq`, host name `sentinel://host:26379/0`, which nobody parses |
| a further one of those, after a failover | scheme `delayq+sentinel`, everything parsed |
"""

from __future__ import annotations

import ssl
from typing import Any

from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.url import parse_url

#: Scheme -> transport class, for kombu's table of aliases.
SCHEMES = {
    "delayq": "celery_delayq.transport:Transport",
    "delayqs": "celery_delayq.transport:Transport",
    "delayq+sentinel": "celery_delayq.transport:SentinelTransport",
}


def register() -> None:
    """Make broker URLs that begin with `delayq` known to kombu, in this process.

    `DelayQ(app)` does so. It is for processes that have none and use such a URL all the same: a pytest fixture that
    makes an app of its own, for example. It connects to nothing, and may be called any number of times.
    """
    TRANSPORT_ALIASES.update(SCHEMES)


def is_sentinel(connection: Any) -> bool:
    """Return whether a kombu connection is to find its server through Sentinel."""
    return connection.transport_cls == "delayq+sentinel" or (connection.hostname or "").startswith("sentinel://")


def ensure_tls(connection: Any) -> None:
    """Make a kombu connection use TLS if its URL or `broker_use_ssl=True` say so.

    Certificates are verified unless the options say otherwise, unlike kombu's with `rediss://`. kombu itself would send
    everything in the clear, password included: it knows TLS by the scheme `rediss`, and ignores a bare True.
    """
    if connection.ssl is True or (connection.transport_cls == "delayqs" and not connection.ssl):
        connection.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}


class SentinelConnection:
    """A kombu connection made from `delayq+sentinel://` URLs, as one made from `sentinel://` URLs would look.

    Everything else is the connection's own.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        #: The URLs of all sentinels, where kombu's channel looks for them.
        self.alt = [_sentinel_url(url) for url in connection.alt]
        if "://" in (connection.hostname or ""):
            parts = parse_url(connection.hostname)
            for name in ("hostname", "port", "userid", "password", "virtual_host", "ssl"):
                setattr(self, name, parts.get(name) or getattr(connection, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _sentinel_url(url: str) -> str:
    return f"sentinel://{url.rpartition('://')[2]}"
