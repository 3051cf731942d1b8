"""Broker URLs: the schemes of this package, and the help that kombu needs with them.

| URL | kombu makes of it |
|---|---|
| `delayq://host:6379/0` | scheme `delayq`, everything parsed |
| `delayqs://host:6380/0` | scheme `delayqs`, everything parsed |
| `delayq+socket:///path/redis.sock` | scheme `delayq`, host name `socket:///path/...`, parsed by its channel |
| `delayq+sentinel://host:26379/0;...` | scheme `delayq`, host name `sentinel://host:26379/0`, parsed by nobody |
| `delayq+cluster://host:6379;...` | scheme `delayq`, host name `cluster://host:6379`, parsed by nobody |
| `delayqs+sentinel://...`, `delayqs+cluster://...` | the same with the scheme `delayqs` |
| the next of several such URLs, after a failover | scheme `delayq+sentinel` and so on, everything parsed |
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kombu.utils.url import parse_url


def hosts_of(connection: Any) -> str:
    """Return what the hosts of a kombu connection are: "cluster", "sentinel", or "" for one server."""
    # The transport may be named by a scheme or a path, or be the class itself.
    transport = connection.get_transport_cls()
    for hosts in ("cluster", "sentinel"):
        if getattr(transport, "hosts", None) == hosts or (connection.hostname or "").startswith(f"{hosts}://"):
            return hosts
    return ""


def place_of(connection: Any) -> str:
    """Return where the server of a kombu connection is, for people, without user and password: `localhost:6379/0`.

    Of a cluster, one host stands for all; of sentinels, the name of what they watch.
    """
    hosts = hosts_of(connection)
    if (connection.hostname or "").startswith("socket://"):
        socket = urlsplit(connection.hostname)
        return " ".join((socket.path, *parse_qs(socket.query).get("virtual_host", ["0"])))
    several = SeveralHosts(connection, hosts) if hosts else connection
    db = str(several.virtual_host or "").strip("/") or "0"
    if hosts == "sentinel":
        return f"Sentinel {connection.transport_options.get('master_name')}/{db}"
    host = several.hostname or "localhost"
    place = f"{f'[{host}]' if ':' in host else host}:{several.port or 6379}"
    return f"Cluster {place}" if hosts else f"{place}/{db}"


def asks_for_tls(connection: Any) -> bool:
    """Return whether the URL of a kombu connection asks for TLS; of several hosts, whether the URL of one does."""
    urls = connection.alt if hosts_of(connection) else ()
    return any(str(url).startswith("delayqs") for url in (connection.transport_cls, *urls))


def ensure_tls(connection: Any) -> None:
    """Make a kombu connection use TLS if its URL or `broker_use_ssl=True` asks for it.

    Unlike kombu with `rediss://`, it verifies certificates unless the options say otherwise. kombu itself would send
    everything unencrypted, even the password: it uses TLS only for the scheme `rediss`, and ignores a plain True.
    """
    if connection.ssl is True or (asks_for_tls(connection) and not connection.ssl):
        connection.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}


def name_whole(connection: Any) -> None:
    """Make a kombu connection that switched to the next URL name it, in `as_uri` and in clones.

    kombu keeps the first part of the scheme for the host names it does not parse. After the switch it has parsed all,
    and would put that part before the bare host name: `delayq+host`.
    """
    if connection.uri_prefix and "+" in str(connection.transport_cls):  # it may be a class
        connection.uri_prefix = None


def what_to_write(app: Any, connection: Any, subject: str) -> tuple[str, str]:
    """Return what a broker is that is not ours, and what to write instead.

    Args:
        app: the Celery app.
        connection: a kombu connection to the broker; it need not be connected.
        subject: what the URL is called, for example "the broker".
    """
    url = connection.as_uri()
    scheme = url.partition("://")[0]
    if scheme == "amqp" and not (app.conf.broker_read_url or app.conf.broker_write_url):
        return (
            f"no broker URL is set, and {subject} is Celery's default, {url}",
            "set broker_url to a URL that starts with delayq:// (from the command line: perhaps -A is missing)",
        )
    ours = _INSTEAD_OF.get(scheme)
    if ours is None:
        return f"{subject} is {url}", "it has to be Redis: start the URL with delayq://"
    which = "each URL" if len(connection.alt or ()) > 1 else "the URL"
    return f"{subject} is {url}", f"start {which} with {ours}:// instead of {scheme}://"


#: Scheme of kombu's for Redis -> our scheme for the same server.
_INSTEAD_OF = {
    "redis": "delayq",
    "rediss": "delayqs",
    "sentinel": "delayq+sentinel",
    "redis+socket": "delayq+socket",
}


class SeveralHosts:
    """A kombu connection whose URL names several hosts, as if it was made from URLs without our part of the scheme.

    User, password, database and TLS options are those of the first URL, whichever URL kombu is at. All other attributes
    are those of the connection.

    Args:
        connection: with `delayq+sentinel://` or `delayq+cluster://` URLs, perhaps with TLS.
        scheme: the rest of the scheme, `sentinel` or `cluster`.

    Attributes:
        wrapped: the connection.
        asks_for_tls: whether TLS is wanted, with Sentinel also to the sentinels.
    """

    def __init__(self, connection: Any, scheme: str) -> None:
        self.wrapped = connection
        self.asks_for_tls = asks_for_tls(connection)
        #: The URLs of all hosts; kombu's channel for Sentinel reads them here.
        self.alt = [f"{scheme}://{url.rpartition('://')[2]}" for url in connection.alt]
        names = ("userid", "password", "virtual_host", "ssl")
        if "://" in (connection.hostname or ""):
            self._take(parse_url(connection.hostname), ("hostname", "port", *names))
        elif self.alt:
            # kombu has switched to another URL. What is said of the servers is in the first one, as for results.
            parts = parse_url(self.alt[0])
            self._take(parts, names)
            if parts["password"]:
                self.userid = parts["userid"]

    def _take(self, parts: dict[str, Any], names: tuple[str, ...]) -> None:
        for name in names:
            setattr(self, name, parts.get(name) or getattr(self.wrapped, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    @property
    def hosts(self) -> list[tuple[str, int | None]]:
        """Host names and ports of all hosts; None for the default port."""
        parsed = [parse_url(url) for url in self.alt]
        own = (self.hostname or "localhost", self.port)
        return list(dict.fromkeys([own, *((parts["hostname"] or "localhost", parts["port"]) for parts in parsed)]))
