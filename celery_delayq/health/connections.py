"""How many connections a server has left."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.health.finding import Finding, error, ok, warning
from celery_delayq.health.servers import Server

#: How many connections a worker needs for one queue, see docs/limits.md.
A_WORKER = 12

#: Fewer than this part of `maxclients` is few.
_FEW = 0.1

_ADVICE = "Raise maxclients, or see docs/limits.md for how to need fewer."


def check_connections(server: Server) -> Iterator[Finding]:
    """Yield how many connections are left."""
    info = server.info
    limit = int(info.get("maxclients", 0)) or int(server.config("maxclients") or 0)
    if not info or not limit:
        return
    left = max(0, limit - int(info.get("connected_clients", 0)) - int(info.get("cluster_connections", 0)))
    message = f"{left:,} of {limit:,} connections are left."
    if left < A_WORKER:
        yield error(f"{message} A worker needs {A_WORKER}.", _ADVICE)
    elif left < limit * _FEW:
        yield warning(message, _ADVICE)
    else:
        yield ok(message)
