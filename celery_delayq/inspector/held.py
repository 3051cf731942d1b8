"""Held: the tasks that consumers have fetched and not acknowledged: they run, or wait in their worker."""

from __future__ import annotations

from collections.abc import Iterable

from redis.client import NEVER_DECODE

from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.consumers import Consumer
from celery_delayq.inspector.task import ScheduledTask, ready_task

#: Number of messages that one call reads, and how many bytes of messages are held in memory.
_READ, _MOST_BYTES = 10, 32 * 1024 * 1024


def held(lists: BrokerLists, found: Iterable[Consumer], limit: int = 100) -> list[ScheduledTask]:
    """Return what consumers hold, the oldest of each list first. What is acknowledged meanwhile may hide another one.

    Args:
        lists: the broker lists.
        found: the consumers.
        limit: the most tasks. There are fewer if their messages have 32 MiB.

    Raises:
        redis.RedisError: a server is away, or refuses.
    """
    now_ms, size = lists.now_ms(), 0
    tasks: list[ScheduledTask] = []
    for consumer, lease in ((one, lease) for one in found for lease in one.leases if lease.in_flight):
        broker_list = lists.parse(lease.broker_list)
        queue = lists.delayed_queue(broker_list)
        for skip in range(0, lease.in_flight, _READ):
            if len(tasks) >= limit or size >= _MOST_BYTES:
                return tasks[:limit]
            part = queue.client.execute_command(
                "LRANGE", queue.keys.in_flight(consumer.id), -skip - _READ, -skip - 1, **{NEVER_DECODE: True}
            )
            tasks += (ready_task(message, broker_list, now_ms) for message in reversed(part))
            size += sum(map(len, part))
    return tasks[:limit]
