"""Check the Redis servers when a worker starts: their version, and settings that may lose delayed tasks."""

from __future__ import annotations

from collections.abc import Iterator
from logging import INFO, WARNING
from typing import Any, NamedTuple

import redis

from celery_delayq.cluster.client import Routed
from celery_delayq.errors import UnsupportedServer

#: The oldest server version that the package supports.
OLDEST_VERSION = (6, 2)


class Finding(NamedTuple):
    """A fact that the operator of a server should know: a logging level and a sentence."""

    level: int
    message: str


def check_servers(client: redis.Redis, *, replicas: int = 0, has_sentinel: bool = False) -> list[Finding]:
    """Return findings about the server of a client, or about all masters of a cluster; empty if all is well.

    Args:
        client: a client of the server, or of a cluster.
        replicas: the transport option `replicas`.
        has_sentinel: whether Redis Sentinel names the server.

    Raises:
        UnsupportedServer: a server is older than Redis 6.2.
    """
    if not isinstance(client, Routed):
        return check_server(client, replicas=replicas, has_sentinel=has_sentinel)
    nodes: dict[Finding, list[str]] = {}
    for node in client.masters():
        try:
            findings = [*check_server(node.client, replicas=replicas), *_check_node(node.client)]
        except (redis.ConnectionError, redis.TimeoutError) as exc:
            findings = [Finding(WARNING, f"Cannot check a node of the cluster: {exc}")]
        finally:
            node.close(in_use=False)  # a worker needs no such connection any more
        for finding in findings:
            nodes.setdefault(finding, []).append(str(node.address))
    return [Finding(level, f"{message} ({', '.join(names)})") for (level, message), names in nodes.items()]


def _check_node(client: redis.Redis) -> Iterator[Finding]:
    """Yield findings about a node of a cluster."""
    if _config(client, "cluster-require-full-coverage") == "yes":
        yield Finding(
            WARNING,
            "Redis has cluster-require-full-coverage yes: while one node is down, all nodes refuse everything. Set it "
            "to no, so that the queues of the others go on.",
        )
    if _config(client, "min-replicas-to-write") == "0" and int(client.info("replication").get("connected_slaves", 0)):
        yield Finding(
            INFO,
            "Redis has min-replicas-to-write 0: a master that is cut off from its replicas goes on to take tasks for "
            "up to cluster-node-timeout, which are lost when a replica takes over.",
        )


def check_server(client: redis.Redis, *, replicas: int = 0, has_sentinel: bool = False) -> list[Finding]:
    """Return findings about a server; empty if all is well.

    Args:
        client: a client of the server.
        replicas: the transport option `replicas`.
        has_sentinel: whether Redis Sentinel names the server.

    Raises:
        UnsupportedServer: the server is older than Redis 6.2.
    """
    try:
        info: dict[str, Any] = client.info()
    except redis.ResponseError as exc:
        return [Finding(INFO, f"Cannot check the version and settings of Redis: {exc}")]
    version = str(info.get("redis_version", ""))
    if version and _numbers(version) < OLDEST_VERSION:
        wanted = ".".join(map(str, OLDEST_VERSION))
        raise UnsupportedServer(f"celery_delayq needs Redis {wanted} or newer, or Valkey; this server is {version}")
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    findings = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        findings.append(
            Finding(
                WARNING,
                f"{name} has maxmemory-policy {policy}: when its memory is full, it may evict keys that hold delayed "
                "tasks. Set it to noeviction.",
            )
        )
    if not info.get("aof_enabled") and _config(client, "save") == "":
        findings.append(
            Finding(
                INFO,
                f"{name} has no persistence (neither AOF nor snapshots): a restart loses all delayed tasks. Set "
                "`appendonly yes` to keep them.",
            )
        )
    return [*findings, *_check_failover(client, info, replicas, has_sentinel, name)]


def _check_failover(
    client: redis.Redis, info: dict[str, Any], replicas: int, has_sentinel: bool, name: str
) -> Iterator[Finding]:
    """Yield findings about what a failover may lose."""
    connected = int(info.get("connected_slaves", 0))
    if connected < replicas:
        yield Finding(
            WARNING,
            f"{name} has {connected} replicas, but the transport option replicas is {replicas}: each publication waits "
            "for replicas_timeout and then raises NotReplicated.",
        )
    if not has_sentinel:
        return
    if _config(client, "min-replicas-to-write") == "0":
        yield Finding(
            WARNING,
            f"{name} has min-replicas-to-write 0: a master that is cut off from its replicas goes on to take tasks, "
            f"which are lost when Sentinel makes a replica the master. {_advice(connected)}",
        )
    if _config(client, "replica-serve-stale-data") == "yes":
        yield Finding(
            WARNING,
            f"{name} has replica-serve-stale-data yes: a replica that has lost its master shows old tasks to "
            "`celery delayq`. Set it to no.",
        )


def _advice(replicas: int) -> str:
    # With one replica, nobody could write after a failover until the old master is back.
    return "Set it to 1." if replicas > 1 else "Add a second replica, then set it to 1."


def _config(client: redis.Redis, name: str) -> str | None:
    """Return a parameter of the server's configuration; None if CONFIG is not allowed."""
    try:
        return str(client.config_get(name)[name])
    except (redis.ResponseError, KeyError):
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
