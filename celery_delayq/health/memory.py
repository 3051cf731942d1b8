"""Whether a server may delete tasks, or has no memory left for them."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.health.finding import Finding, Level
from celery_delayq.health.servers import Server

_CHECK = "memory"

#: From this part of `maxmemory` on, memory is scarce.
_SCARCE = 0.9


def check_memory(server: Server) -> Iterator[Finding]:
    """Yield what the server does when its memory is full, and whether it soon is."""
    info, name = server.info, server.software
    if not info:
        return
    policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
    if policy.startswith("allkeys"):
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"{name} has maxmemory-policy {policy}: when its memory is full, it may evict keys that hold delayed "
            "tasks.",
            "Set it to noeviction.",
        )
    elif policy != "noeviction" and limit:
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"{name} has maxmemory-policy {policy}: when its memory is full, it may evict keys that expire, such as "
            "results, and the messages of queues that expire.",
            "Set it to noeviction.",
        )
    if limit and int(info.get("used_memory", 0)) > limit * _SCARCE:
        used_mb, limit_mb = int(info["used_memory"]) / 1e6, limit / 1e6
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"{name} uses {used_mb:,.0f} MB of the {limit_mb:,.0f} MB that maxmemory allows: then publishing fails.",
            "Raise maxmemory, or see `celery -A ... delayq status` for what waits.",
        )
    elif policy == "noeviction" or not (limit or policy.startswith("allkeys")):
        shown = limit or "not set"
        yield Finding(_CHECK, Level.OK, f"{name} evicts no tasks: maxmemory-policy {policy}, maxmemory {shown}.")
