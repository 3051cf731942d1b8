"""Check a Redis server when a worker starts: its version, and settings that may lose delayed tasks."""

from __future__ import annotations

from logging import INFO, WARNING
from typing import Any, NamedTuple

import redis

from celery_delayq.errors import UnsupportedServer

#: The oldest server version that the package supports.
OLDEST_VERSION = (6, 2)


class Finding(NamedTuple):
    """A fact that the operator of a server should know: a logging level and a sentence."""

    level: int
    message: str


def check_server(client: redis.Redis) -> list[Finding]:
    """Return findings about a server; empty if all is well.

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
    if not info.get("aof_enabled") and _snapshots(client) == "":
        findings.append(
            Finding(
                INFO,
                f"{name} has no persistence (neither AOF nor snapshots): a restart loses all delayed tasks. Set "
                "`appendonly yes` to keep them.",
            )
        )
    return findings


def _snapshots(client: redis.Redis) -> str | None:
    """Return the server's `save` rules; None if CONFIG is not allowed."""
    try:
        return str(client.config_get("save")["save"])
    except (redis.ResponseError, KeyError):
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
