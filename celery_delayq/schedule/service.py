"""A planner loop for a Celery app. A worker's bootstep and beat's scheduler start it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import redis

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.options.settings import settings_of
from celery_delayq.queue.connections import hurried, is_cluster, new_id
from celery_delayq.schedule.configured import reader
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.loop import PlannerLoop
from celery_delayq.schedule.message import Builder
from celery_delayq.schedule.planner import Planner
from celery_delayq.schedule.store import ScheduleStore
from celery_delayq.schedule.transitions import policy_of
from celery_delayq.transport import Transport
from celery_delayq.transport.connector import Connector
from celery_delayq.transport.producer import Producer
from celery_delayq.transport.replicas import Replicas, ReplicatedClient
from celery_delayq.transport.urls import hosts_of, what_to_write

#: How long a planner waits for replicas before an entry leaves a node, in ms.
_KEPT_MS = 100

#: How long a planner waits for a node of a cluster, in seconds. Meanwhile, the entries of all nodes wait.
_PATIENCE_S = 2.0


def planner_loop(
    app: Any,
    *,
    on_sent: Callable[[Definition], None] = lambda definition: None,
    on_missed: Callable[[str, str, int], None] | None = None,
    chores: Callable[[redis.Redis], None] = lambda client: None,
    is_back: bool = False,
) -> PlannerLoop:
    """Return a loop that plans the periodic tasks of an app. The loop is not started yet.

    Args:
        app: the Celery app.
        on_sent: called with the definition when this planner's occurrence of it was sent.
        on_missed: see `Planner`.
        chores: see `PlannerLoop`.
        is_back: whether this process had such a loop before and lost the connection.

    Raises:
        ConfigurationError: the app's broker URL is not a `delayq://` URL, or a setting is wrong.
    """
    settings = settings_of(app).schedule
    # With many entries this takes long: do it once, after the loop has started.
    configuration = cache(reader(app))
    with app.connection_for_write() as connection:
        if not isinstance(connection.transport, Transport):
            what, advice = what_to_write(app, connection, "the broker")
            raise ConfigurationError(f"celery_delayq.beat:Scheduler needs a delayq:// broker, but {what}: {advice}")
        connector = Connector(connection, failover=True)
    deadline_s = app.conf.beat_cron_starting_deadline
    loop_id = new_id()
    connections = itertools.count(int(is_back))

    @contextmanager
    def connect() -> Iterator[tuple[ScheduleStore, Callable[[], Planner]]]:
        with connector.channel() as channel, Producer(channel, auto_declare=False) as producer:
            store = planners_store(channel)
            builder = Builder(app, producer)
            connected_before = next(connections) > 0

            def make_planner() -> Planner:
                return Planner(
                    store,
                    configuration(),
                    parse=lambda name, data: Definition.of(name, data, app),
                    build=builder.build,
                    policy=partial(policy_of, defaults=settings, cron_deadline_s=deadline_s),
                    id=loop_id,
                    on_sent=on_sent,
                    on_missed=on_missed,
                    is_back=connected_before,
                )

            yield store, make_planner

    # One node of a cluster must not hold up the transfers of the others.
    return PlannerLoop(connect, chores, is_awaited=hosts_of(connection) != "cluster")


def planners_store(channel: Any) -> ScheduleStore:
    """Return a planner's store: it waits neither long for a node of a cluster, nor for a slot that moves.

    Args:
        channel: a channel with our transport.
    """
    if not is_cluster(channel.plain_client):
        return store_of(channel)
    client = hurried(channel.plain_client, deadline_s=0, hurry_s=_PATIENCE_S)
    topology, nodes, options = channel.topology, channel.connection.nodes, channel.connection.options
    return ScheduleStore(
        client,
        keyprefix=channel.global_keyprefix,
        mirror_list=options["mirror_list"],
        keeper=ReplicatedClient(client, Replicas(options["replicas"], _KEPT_MS)) if options["replicas"] else None,
        on_away=lambda key: nodes.lose(topology.address_of(key)),
    )


def store_of(channel: Any, *, replicate: bool = False) -> ScheduleStore:
    """Return the schedule in the database of a channel with our transport.

    Args:
        channel: the channel.
        replicate: wait for replicas, if the transport options want that: for changes of users. A planner does not wait.
    """
    return ScheduleStore(
        channel.plain_client,
        keyprefix=channel.global_keyprefix,
        mirror_list=channel.connection.options["mirror_list"],
        writer=channel.writer if replicate else None,
    )
