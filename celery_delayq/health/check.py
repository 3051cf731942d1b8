"""All checks of an app and its broker, for `celery delayq check`. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

import redis

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.finding import Finding, Level, merged, not_checked
from celery_delayq.health.permissions import check_permissions, needs, with_same_command
from celery_delayq.health.planning import check_planning
from celery_delayq.health.queues import Waiting, check_overdue, check_paused, check_queues, check_transfer, read_waiting
from celery_delayq.health.server_checks import (
    check_clock,
    check_connections,
    check_memory,
    check_persistence,
    check_replication,
    check_version,
    replication_of,
)
from celery_delayq.health.servers import Check, Server, examine, is_away, servers_of
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.options.scheduler import is_ours
from celery_delayq.queue import keys
from celery_delayq.queue.connections import LOST
from celery_delayq.queue.delayed_queue import database_of
from celery_delayq.queue.registry import registered
from celery_delayq.schedule.configured import configured
from celery_delayq.schedule.service import store_of

#: How many nodes are checked at once.
_MOST_AT_ONCE = 16


def check_broker(app: Any, channel: Any) -> list[Finding]:
    """Return what all checks of a broker found.

    Args:
        app: the Celery app.
        channel: a channel of our transport. Its timeouts say how long the check takes if a server hangs.

    Raises:
        ConfigurationError: the URL is one of a single server, and this is a Redis Sentinel, or a node of a cluster.
        redis.RedisError: the only server, or each node of the cluster, is away.
    """
    found: list[Finding] = []
    broker = _Broker(app, channel)
    try:
        entries = configured(app) if is_ours(app) else None
    except ConfigurationError as exc:
        entries = None
        found.append(Finding("planner", Level.ERROR, f"{exc}."))
    of_server: dict[str, Check] = {
        "server": check_version,
        "persistence": check_persistence,
        "memory": check_memory,
        "replicas": partial(check_replication, **replication_of(app, channel)),
        "connections": check_connections,
        "permissions": broker.permissions,
        "clock": check_clock,
        "planner": partial(check_planning, store=store_of(channel), entries=entries, known=app.tasks),
        "transfer": broker.of_waiting(check_transfer),
        "overdue": broker.of_waiting(check_overdue),
        "queues": broker.of_waiting(check_queues),
        "paused": partial(check_paused, keyprefix=channel.global_keyprefix),
    }
    return merged(with_same_command([*broker.examine_all(of_server), *found]))


def check_rights(app: Any, channel: Any) -> list[Finding]:
    """Return what the user may do, and what not, at each server; see `check_broker`."""
    broker = _Broker(app, channel)
    checks = {"permissions": broker.permissions}
    return merged(with_same_command(it for server in broker.servers for it in examine(server, checks)))


def check_only_overdue(app: Any, channel: Any, *, most_s: float) -> list[Finding]:
    """Return whether messages of any queue are overdue for longer than `most_s` seconds: errors, if they are.

    What could not be checked is an error, too: a probe must not be content with that.

    Args:
        app: the Celery app.
        channel: see `check_broker`.
        most_s: the longest that is no error.

    Raises:
        redis.RedisError: the only server, or each node of the cluster, is away.
    """
    broker = _Broker(app, channel)
    findings = merged(broker.examine_all({"overdue": broker.of_waiting(partial(check_overdue, most_s=most_s))}))
    return [it if it.was_checked else replace(it, level=Level.ERROR) for it in findings]


class _Broker:
    """The servers of an app's broker, and its lists."""

    def __init__(self, app: Any, channel: Any) -> None:
        self.servers = servers_of(channel.plain_client)
        self._channel = channel
        self._queues: tuple[str, ...] = tuple(app.amqp.queues)
        self._db = database_of(channel.plain_client)
        self._lists: list[BrokerList] = []
        #: Server -> what waits there.
        self._waiting: dict[str, Waiting] = {}
        #: Server -> the finding that it is away.
        self._away: dict[str, Finding] = {}

    @property
    def permissions(self) -> Check:
        """A check of what the user may do."""
        needed = partial(needs, self._channel, self._queues, self._db)
        # With a prefix, a right is for the keys of all queues.
        return partial(check_permissions, needed=needed, queues=() if self._channel.global_keyprefix else self._queues)

    def examine_all(self, checks: Mapping[str, Check]) -> Iterator[Finding]:
        """Yield the findings about all servers, several of which are examined at the same time."""
        about_lists = list(self._find_lists())
        with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(self.servers))) as pool:
            contexts = [copy_context() for _ in self.servers]  # which have the `timeout` of the call
            for findings in pool.map(lambda it, server: it.run(self._examine, server, checks), contexts, self.servers):
                yield from findings
        yield from about_lists

    def _examine(self, server: Server, checks: Mapping[str, Check]) -> list[Finding]:
        away = self._away.get(server.name)
        return [away] if away is not None else list(examine(server, checks))

    def _find_lists(self) -> Iterator[Finding]:
        lists, prefix = BrokerLists(self._channel, self._queues), self._channel.global_keyprefix
        found = lists.of_app()
        registry = next((it for it in self.servers if it.serves(keys.registry(prefix))), self.servers[0])
        try:
            found |= set(map(lists.parse, registered(registry.client, prefix)))
        except LOST as exc:
            self._away[registry.name] = is_away(registry, exc)
        except redis.RedisError as exc:
            yield not_checked(f"queues that are not the app's: {exc}", "overdue")
        self._lists = sorted(found)
        lost = {it.queue for it in found if not any(server.serves(it.name) for server in self.servers)}
        if lost:
            yield Finding(
                "server",
                Level.ERROR,
                f"No node of the cluster serves {', '.join(map(repr, sorted(lost)))}.",
                "Find out which node had the hash slots, and bring it back.",
            )

    def of_waiting(self, check: Callable[[Waiting], Iterable[Finding]]) -> Check:
        """Return a check of a server, which needs what waits there."""

        def check_server(server: Server) -> Iterable[Finding]:
            if server.name not in self._waiting:
                self._waiting[server.name] = read_waiting(server, self._lists, self._channel.global_keyprefix, self._db)
            return check(self._waiting[server.name])

        return check_server
