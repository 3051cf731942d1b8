"""Whether a server may delete tasks, or has no memory left for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from celery_delayq.health.finding import Finding, error, ok, warning
from celery_delayq.health.servers import Server

#: From this part of `maxmemory` on, memory is scarce.
_SCARCE = 0.9


def check_memory(server: Server) -> Iterator[Finding]:
    """Yield what the server does when its memory is full, and whether it soon is."""
    info, name = server.info, server.software
    if not info:
        return
    policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", 0))
    if policy.startswith("allkeys"):
        yield warning(
            f"{name} has maxmemory-policy {policy}: when its memory is full, it may evict keys that hold delayed "
            "tasks.",
            "Set it to noeviction.",
        )
    elif policy != "noeviction" and limit:
        yield warning(
            f"{name} has maxmemory-policy {policy}: when its memory is full, it may evict keys that expire, such as "
            "results, and the messages of queues that expire.",
            "Set it to noeviction.",
        )
    # Redis does not count these, for example the buffers for its replicas.
    used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
    if limit and not policy.startswith("allkeys") and used > limit * _SCARCE:
        advice = "Raise maxmemory, or see `celery -A ... delayq status` for what waits."
        if used < limit:
            percent = math.floor(100 * used / limit)
            yield warning(f"{name} has used {percent} % of maxmemory; when it is full, publishing fails.", advice)
        else:
            yield error(f"{name} is full ({used / 1e6:,.1f} of {limit / 1e6:,.1f} MB): publishing fails.", advice)
    elif policy == "noeviction" or not (limit or policy.startswith("allkeys")):
        shown = limit or "not set"
        yield ok(f"{name} evicts no tasks: maxmemory-policy {policy}, maxmemory {shown}.")
