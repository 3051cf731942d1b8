"""Who holds a unique key, and giving one up."""

from __future__ import annotations

from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.task import ScheduledTask, scheduled_task
from celery_delayq.queue import codec
from celery_delayq.queue.holds import forget, holds_of


def waiting(lists: BrokerLists, key: str) -> ScheduledTask | None:
    """Return the waiting task that holds a unique key, or None; if queues have one each, the one that is due first.

    Raises:
        NodesAway: nodes of a cluster are away that may know it.
    """
    now_ms = lists.now_ms()
    queues = [lists.delayed_queue(found) for found in lists.all()]
    found = []
    for hold in holds_of(lists.asking, [queue.keys for queue in queues], key):
        broker_list = lists.parse(hold.broker_list)
        for entry in lists.delayed_queue(broker_list).find(hold.task_id) if hold.waits else ():
            offer_id = codec.OfferId.from_bytes(entry.id)
            if offer_id is not None and offer_id.unique:
                found.append(scheduled_task(entry, broker_list, now_ms))
    return min(found, key=lambda task: task.due_ms, default=None)


def give_up(lists: BrokerLists, key: str) -> bool:
    """Give up a unique key in all queues; returns whether it was held.

    Raises:
        NodesAway: nodes of a cluster are away that may know it.
    """
    return forget(lists.client, [lists.delayed_queue(found).keys for found in lists.all()], key)
