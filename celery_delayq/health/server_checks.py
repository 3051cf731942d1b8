"""Checks of a server: its version, persistence, memory, replicas, connections and clock."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import redis
from kombu.transport.redis import SentinelChannel

from celery_delayq.basics.finding import Finding, Level, error, not_checked, note, ok, warning
from celery_delayq.basics.text import name_and_version, plural
from celery_delayq.health.servers import Server
from celery_delayq.transport.wrong_server import refuse_mode

#: The oldest version of Redis that the package supports.
OLDEST = (6, 2)

#: From this part of `maxmemory` on, memory is scarce.
_MEMORY_SCARCE = 0.9

#: How many connections a worker needs for one queue, see docs/redis.md.
A_WORKER = 12

#: Fewer than this part of `maxclients` is few.
_FEW_CONNECTIONS = 0.1

_MORE_CONNECTIONS = "Raise maxclients, or see docs/redis.md for how to need fewer."

#: How often the server is asked; the fastest answer counts.
_CLOCK_QUESTIONS = 3

#: Differences from which on there is a warning, and an error, in seconds.
_CLOCK_NOTICEABLE_S, _CLOCK_WRONG_S = 0.5, 30.0


def check_version(server: Server) -> Iterator[Finding]:
    """Yield what the server is.

    Raises:
        ConfigurationError: the URL is one of a single server, and this is a Redis Sentinel, or a node of a cluster.
    """
    if not server.info:
        yield note(f"Cannot check the version and settings of Redis: {_why_no_info(server)}.")
        return
    if not server.in_cluster:
        refuse_mode(server.info)
    problem = too_old(server)
    if problem:
        yield error(f"{problem}.")
    else:
        yield ok(f"{name_and_version(server.info)}.")


def too_old(server: Server) -> str | None:
    """Return what is wrong with the version; None if it is supported, or not known."""
    version = str(server.info.get("redis_version", ""))
    if not version or tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= OLDEST:
        return None
    return f"celery_delayq needs Redis {'.'.join(map(str, OLDEST))} or newer, or Valkey; this server is {version}"


def _why_no_info(server: Server) -> str:
    """Return why INFO is refused."""
    try:
        server.client.info("server")
    except redis.ResponseError as exc:
        return str(exc).rstrip(".")
    return "INFO was refused"


def check_persistence(server: Server) -> Iterator[Finding]:
    """Yield what a restart of the server loses."""
    info, name = server.info, server.software
    if not info:
        yield not_checked("the user may not call INFO")
        return
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            yield _cannot_write(name, "write its append-only file")
        else:
            yield ok(f"{name} writes an append-only file.")
        return
    save = server.config("save")
    if save is None:
        yield not_checked("the user may not call CONFIG GET")
    elif not save:
        yield warning(
            f"{name} has no persistence (neither AOF nor snapshots): a restart loses all delayed tasks.",
            "Set `appendonly yes` to keep them.",
        )
    elif info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield _cannot_write(name, "save a snapshot")
    else:
        yield ok(f"{name} saves snapshots: a crash loses everything since the last one.")


def _cannot_write(name: str, what: str) -> Finding:
    return error(
        f"{name} could not {what}: a restart loses tasks, and it may refuse writes until that works again.",
        "Read its log: its disk may be full.",
    )


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
    if limit and not policy.startswith("allkeys") and used > limit * _MEMORY_SCARCE:
        advice = "Raise maxmemory, or see `celery -A ... delayq status` for what waits."
        if used < limit:
            percent = math.floor(100 * used / limit)
            yield warning(f"{name} has used {percent} % of maxmemory; when it is full, publishing fails.", advice)
        else:
            yield error(f"{name} is full ({used / 1e6:,.1f} of {limit / 1e6:,.1f} MB): publishing fails.", advice)
    elif policy == "noeviction" or not (limit or policy.startswith("allkeys")):
        shown = limit or "not set"
        yield ok(f"{name} evicts no tasks: maxmemory-policy {policy}, maxmemory {shown}.")


def check_replication(server: Server, *, replicas: int = 0, has_sentinel: bool = False) -> Iterator[Finding]:
    """Yield what is wrong with the server's replicas, or that nothing is.

    Args:
        server: the server.
        replicas: the transport option `replicas`.
        has_sentinel: whether Redis Sentinel names the server.
    """
    if not server.info:
        return
    connected = int(server.info.get("connected_slaves", 0))
    found = list(_replication_problems(server, connected, replicas, has_sentinel))
    yield from found
    if all(finding.level is Level.NOTE for finding in found):
        wanted = f"; callers wait for {replicas}" if replicas else ""
        yield ok(f"{server.software} has {plural(connected, 'replica')}{wanted}.")


def replication_of(app: Any, channel: Any) -> dict[str, Any]:
    """Return what `check_replication` has to know of an app and a channel of our transport, by the names there."""
    # Not the option of the channel: a check waits for no replica. That it is no number is what `check_options` finds.
    replicas = app.conf.broker_transport_options.get("replicas", 0)
    return {
        "replicas": replicas if isinstance(replicas, int) else 0,
        "has_sentinel": isinstance(channel, SentinelChannel),
    }


def _replication_problems(server: Server, connected: int, replicas: int, has_sentinel: bool) -> Iterator[Finding]:
    name = server.software
    if server.info.get("role") == "slave":
        advice = "Use the broker URL of the master, or of Sentinel."
        yield error(f"{name} at {server.name} is a replica: it refuses writes.", advice)
        return
    if connected < replicas:
        yield warning(
            f"{name} has {plural(connected, 'replica')}, but the transport option replicas is {replicas}: each "
            "publication waits for replicas_timeout and then raises NotReplicated.",
            "Start more replicas, or lower the option.",
        )
    takes_lost_tasks = (server.in_cluster or has_sentinel) and server.config("min-replicas-to-write") == "0"
    cut_off = f"{name} has min-replicas-to-write 0: a master that is cut off from its replicas keeps accepting tasks"
    if server.in_cluster:
        if server.config("cluster-require-full-coverage") == "yes":
            yield warning(
                f"{name} has cluster-require-full-coverage yes: while one node is down, all nodes refuse everything.",
                "Set it to no, so that queues on the other nodes keep working.",
            )
        if takes_lost_tasks and connected:
            yield note(f"{cut_off} for up to cluster-node-timeout, which are lost when a replica takes over.")
    if has_sentinel:
        if takes_lost_tasks:
            # With one replica, nobody could write after a failover until the old master is back.
            advice = "Set it to 1." if connected > 1 else "Add a second replica, then set it to 1."
            yield warning(f"{cut_off}, which are lost when Sentinel makes a replica the master.", advice)
        if server.config("replica-serve-stale-data") == "yes":
            yield warning(
                f"{name} has replica-serve-stale-data yes: a replica that has lost its master shows old tasks to "
                "`celery delayq`.",
                "Set it to no.",
            )


def check_connections(server: Server) -> Iterator[Finding]:
    """Yield how many connections are left."""
    info = server.info
    limit = int(info.get("maxclients", 0)) or int(server.config("maxclients") or 0)
    if not info or not limit:
        return
    left = max(0, limit - int(info.get("connected_clients", 0)) - int(info.get("cluster_connections", 0)))
    message = f"{left:,} of {limit:,} connections are left."
    if left < A_WORKER:
        yield error(f"{message} A worker needs {A_WORKER}.", _MORE_CONNECTIONS)
    elif left < limit * _FEW_CONNECTIONS:
        yield warning(message, _MORE_CONNECTIONS)
    else:
        yield ok(message)


def check_clock(server: Server) -> Iterator[Finding]:
    """Yield how far the clock of this machine is ahead of the server's.

    An eta that somebody computes from a countdown is a time by their own clock; it is over by the server's.
    """
    error_s, ahead_s = min(_ask_clock(server) for _ in range(_CLOCK_QUESTIONS))
    apart_s = max(0.0, abs(ahead_s) - error_s)
    if apart_s < _CLOCK_NOTICEABLE_S:
        yield ok(f"The clocks of this machine and of {server.software} agree.")
        return
    side, effect = ("ahead of", "late") if ahead_s > 0 else ("behind", "early")
    message = (
        f"The clock of this machine is {apart_s:.1f} s {side} that of {server.software}: countdowns set on this "
        f"machine end that much too {effect}."
    )
    yield (error if apart_s >= _CLOCK_WRONG_S else warning)(message, "Let NTP set both clocks.")


def _ask_clock(server: Server) -> tuple[float, float]:
    """Return how inexact the answer is, and how far our clock is ahead, in seconds."""
    sent = time.time()
    seconds, microseconds = server.client.time()
    received = time.time()
    return (received - sent) / 2, (sent + received) / 2 - int(seconds) - int(microseconds) / 1_000_000
