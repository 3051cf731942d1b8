"""The servers that are checked: one, or all masters of a Redis Cluster. One that is away is a finding, not an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import redis

from celery_delayq.basics.finding import Finding, Level, not_checked, sentence
from celery_delayq.health.advice import advice_for
from celery_delayq.queue.connections import LOST, address_of, is_cluster


@dataclass(frozen=True)
class Server:
    """A server to check.

    Attributes:
        name: its address.
        client: a plain client of this server alone.
        serves: returns whether a key is at this server.
        in_cluster: whether it is a node of a cluster.
    """

    name: str
    client: redis.Redis
    serves: Callable[[str], bool] = lambda key: True
    in_cluster: bool = False

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """The reply to INFO; empty if that is not allowed.

        Raises:
            redis.ConnectionError, redis.TimeoutError: the server is away.
        """
        try:
            found: Mapping[str, Any] = self.client.info()
        except redis.ResponseError:
            return {}
        return found

    @property
    def is_known(self) -> bool:
        """Whether INFO was read."""
        return "info" in vars(self)

    @property
    def software(self) -> str:
        """The name of its software."""
        return "Valkey" if self.info.get("server_name") == "valkey" else "Redis"

    def config(self, name: str) -> str | None:
        """Return a parameter of the configuration; None if CONFIG is not allowed, or if there is no such parameter."""
        try:
            return str(self.client.config_get(name)[name])
        except (redis.ResponseError, KeyError):
            return None


#: Yields findings about a server, in which `examine` names both. May raise what redis-py raises.
Check = Callable[[Server], Iterable[Finding]]


def servers_of(client: redis.Redis) -> list[Server]:
    """Return the server of a client, or all masters of a cluster.

    Raises:
        redis.RedisError: the only server, or each node of the cluster, is away.
    """
    if not is_cluster(client):
        with suppress(redis.ResponseError):  # a server that cannot save refuses even this
            client.ping()  # with Sentinel, the address is known once there is a connection
        return [Server(address_of(client), client)]
    routed: Any = client
    serves = routed.topology.serves
    return [
        Server(str(node.address), node.client, partial(serves, node.address), in_cluster=True)
        for node in routed.masters()
    ]


def examine(server: Server, checks: Mapping[str, Check], *, away: Level = Level.ERROR) -> Iterator[Finding]:
    """Make checks at a server, one after the other. If the server is away, that is the only further finding.

    Args:
        server: the server.
        checks: name -> check.
        away: the level of the finding that the server is away.
    """
    for name, check in checks.items():
        try:
            for finding in check(server):
                yield replace(finding, check=name, servers=(server.name,))
        except LOST as exc:
            yield is_away(server, exc, away)
            return
        except redis.RedisError as exc:
            yield replace(not_checked(exc, name), servers=(server.name,))


def is_away(server: Server, exc: Exception, level: Level = Level.ERROR) -> Finding:
    """Return the finding that a server cannot be used."""
    what = f"Cannot use {'the node ' if server.in_cluster else ''}{server.name}"
    advice = advice_for(str(exc), _AWAY[server.in_cluster])
    return Finding("server", level, sentence(f"{what}: {exc}"), advice, servers=(server.name,))


_AWAY = {
    False: "Find out why: nothing works without it.",
    True: "Find out why: its queues wait until it is back, or a replica has taken over.",
}
