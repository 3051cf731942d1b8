"""What a worker, and `celery delayq transfer`, check and say at their start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import ERROR, INFO, WARNING, Logger
from typing import Any

from celery_delayq.basics.errors import UnsupportedServer
from celery_delayq.basics.finding import Finding, Level, merged
from celery_delayq.basics.text import name_and_version, with_app
from celery_delayq.basics.version import __version__
from celery_delayq.health.options import check_options, described
from celery_delayq.health.server_checks import (
    check_clock,
    check_memory,
    check_persistence,
    check_replication,
    check_version,
    replication_of,
    too_old,
)
from celery_delayq.health.servers import Server, examine, servers_of

_LOGGED_AS = {Level.NOTE: INFO, Level.WARNING: WARNING, Level.ERROR: ERROR}


def say_at_start(logger: Logger, app: Any, channel: Any) -> None:
    """Log the versions, the options that differ from the defaults, and what the operator should know.

    Args:
        logger: where to log.
        app: the Celery app.
        channel: a channel of our transport.

    Raises:
        UnsupportedServer: a server is older than Redis 6.2.
        redis.RedisError: see `servers_of`.
    """
    servers = servers_of(channel.plain_client)
    findings = [it for it in check_options(app) if it.level is Level.WARNING]  # with an error, nobody comes here
    findings += check_servers(servers, **replication_of(app, channel))
    logger.info("celery_delayq %s with %s. %s.", __version__, _names(servers), described(app))
    for finding in findings:
        logger.log(_LOGGED_AS[finding.level], "%s", f"{finding.told(len(servers))} {with_app(finding.advice)}".rstrip())


def check_servers(servers: Sequence[Server], *, replicas: int = 0, has_sentinel: bool = False) -> list[Finding]:
    """Return what the operator should know about a server, or about all masters of a cluster; empty if all is well.

    Args:
        servers: see `servers_of`.
        replicas: the transport option `replicas`.
        has_sentinel: whether Redis Sentinel names the server.

    Raises:
        UnsupportedServer: a server is older than Redis 6.2.
    """
    checks = {
        "server": _refuse_old,
        "memory": check_memory,
        "persistence": check_persistence,
        "clock": check_clock,
        "replicas": lambda server: check_replication(server, replicas=replicas, has_sentinel=has_sentinel),
    }
    found: list[Finding] = []
    for server in servers:
        found += examine(server, checks, away=Level.WARNING)
        if server.in_cluster:  # a worker needs no such connection any more
            server.client.connection_pool.disconnect(inuse_connections=False)
    return [it for it in merged(found) if it.was_checked and it.level is not Level.OK]


def _refuse_old(server: Server) -> Iterable[Finding]:
    problem = too_old(server)
    if problem:
        raise UnsupportedServer(problem)
    return check_version(server)


def _names(servers: Sequence[Server]) -> str:
    """Return what the servers are, and where."""
    if not servers[0].in_cluster:
        return f"{name_and_version(servers[0].info)} at {servers[0].name}"
    masters = "1 master" if len(servers) == 1 else f"{len(servers)} masters"
    versions = sorted({name_and_version(server.info) for server in servers if server.is_known})
    return f"a Redis Cluster of {masters} ({', '.join(versions) or 'of which none answers'})"
