"""The version of a server."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from celery_delayq.health.finding import Finding, error, note, ok
from celery_delayq.health.servers import Server
from celery_delayq.transport.wrong_server import refuse_mode

#: The oldest version that the package supports.
OLDEST = (6, 2)


def check_version(server: Server) -> Iterator[Finding]:
    """Yield what the server is.

    Raises:
        ConfigurationError: the URL is one of a single server, and this is a Redis Sentinel, or a node of a cluster.
    """
    if not server.info:
        yield note(f"Cannot check the version and settings of Redis: {_refusal(server)}.")
        return
    if not server.in_cluster:
        refuse_mode(server.info)
    problem = too_old(server)
    if problem:
        yield error(f"{problem}.")
    else:
        yield ok(f"{name_and_version(server)}.")


def too_old(server: Server) -> str | None:
    """Return what is wrong with the version; None if it is supported, or not known."""
    version = str(server.info.get("redis_version", ""))
    if not version or tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= OLDEST:
        return None
    return f"celery_delayq needs Redis {'.'.join(map(str, OLDEST))} or newer, or Valkey; this server is {version}"


def name_and_version(server: Server) -> str:
    """Return what a server is, such as `Redis 7.0.15`. The `redis_version` of any Valkey is 7.2.4."""
    info = server.info
    version = info.get("valkey_version") or info.get("redis_version") or "of an unknown version"
    return f"{server.software} {version}"


def _refusal(server: Server) -> str:
    """Return why INFO is refused."""
    try:
        server.client.info("server")
    except redis.ResponseError as exc:
        return str(exc).rstrip(".")
    return "INFO was refused"
