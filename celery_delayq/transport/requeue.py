"""Requeue: what becomes of a message whose task has killed its process, or rejected its message, again and again.

Celery puts such a message back at once, each time and without end. Here it is counted, waits in its delayed queue for
longer each time, so that others have their turn, and is a dead letter in the end.
"""

from __future__ import annotations

from logging import getLogger

from redis import exceptions

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.held import Held
from celery_delayq.queue.connections import CONNECTION_ERRORS, hurried, new_id, refusals
from celery_delayq.transport import messages, redelivery
from celery_delayq.transport.messages import headers_of
from celery_delayq.transport.protocols import Channel

logger = getLogger(__name__)

#: The first pause, and the longest one, in seconds. Each is twice as long as the one before.
_FIRST_S, _LONGEST_S = 1.0, 60.0

#: How a task has ended -> the header that counts this, the transport option that limits it, what the log says.
_COUNTED = {
    "killed": (redelivery.DELIVERY_COUNT, "delivery_limit", "has killed its process"),
    "rejected": (redelivery.REQUEUE_COUNT, "requeue_limit", "has rejected its message"),
}


def run_again(channel: Channel, consumer: Consumer, tag: str, held: Held) -> None:
    """Let a task run again later, or let its message be a dead letter. Never raises for the server or the network.

    If the message cannot go to the delayed queue, it goes to the back of its list.

    Args:
        channel: an open one.
        consumer: it holds the message.
        tag: of the message.
        held: the message, with `Held.ended`.
    """
    header, option, what = _COUNTED[held.ended]
    limit = channel.connection.options[option]
    written, count, is_dead = redelivery.again(held.message, counted=header, limit=limit, what=what)
    headers = headers_of(messages.decode(held.message) or {})
    task_id = headers.get("id")
    # One of protocol 1 has its id in the body: nobody finds it while it pauses.
    task = f"Task {headers.get('task')}[{task_id}]" if task_id else f"A task of {held.name!r}"
    if is_dead:
        logger.error("%s %s %d times, the limit, and became a dead letter of %r", task, what, count, held.name)
        consumer.set_aside(tag, written)
        return
    pause_s = min(_LONGEST_S, _FIRST_S * 2 ** min(count - 1, 10))
    try:
        channel.delayed_queue(held.name).offer_fetched(
            held.message,
            written,
            consumer=consumer.id,
            countdown=pause_s,
            message_id=task_id if isinstance(task_id, str) else new_id(),
            holder=held.holder,
            client=hurried(channel.plain_client),
        )
    except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
        if not refusals.note(exc, logger):
            logger.warning("%s runs again without a pause: %s", task, exc)
        consumer.requeue(tag, written)
        return
    consumer.has_left(tag)
    logger.warning("%s %s (%d). It runs again in %g s", task, what, count, pause_s)
