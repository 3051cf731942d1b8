"""What a failover of a server may lose."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.basics.text import plural
from celery_delayq.health.finding import Finding, Level, error, note, ok, warning
from celery_delayq.health.servers import Server


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
    found = list(_problems(server, connected, replicas, has_sentinel))
    yield from found
    if all(finding.level is Level.NOTE for finding in found):
        wanted = f"; callers wait for {replicas}" if replicas else ""
        yield ok(f"{server.software} has {plural(connected, 'replica')}{wanted}.")


def _problems(server: Server, connected: int, replicas: int, has_sentinel: bool) -> Iterator[Finding]:
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
    cut_off = f"{name} has min-replicas-to-write 0: a master that is cut off from its replicas goes on to take tasks"
    if server.in_cluster:
        if server.config("cluster-require-full-coverage") == "yes":
            yield warning(
                f"{name} has cluster-require-full-coverage yes: while one node is down, all nodes refuse everything.",
                "Set it to no, so that the queues of the others go on.",
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
