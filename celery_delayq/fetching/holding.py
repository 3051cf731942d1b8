"""HoldingConsumer: the messages that a consumer holds, and what becomes of them. `Consumer` fetches them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from logging import getLogger
from types import MappingProxyType
from typing import Literal

import redis

from celery_delayq.fetching.conversation import Conversation, Urgency
from celery_delayq.fetching.held import DEAD_LETTERS, Held, Redelivery
from celery_delayq.fetching.isolation import Isolation
from celery_delayq.fetching.lease import Leases
from celery_delayq.fetching.outbox import Departure, Outbox
from celery_delayq.fetching.unique_keys import UniqueKeys
from celery_delayq.queue import scripts
from celery_delayq.queue.dead_letter import reason_of
from celery_delayq.queue.holds import Holder

logger = getLogger(__name__)

#: Shared by the whole process: a running task is known by its tag alone, even after its consumer was closed.
#: `next` of it is atomic with the GIL, and without it since Python 3.14.
_TAGS = itertools.count(1)


class HoldingConsumer:
    """A consumer as those know it who work on its messages.

    Any thread may say that a task starts, ends, or has failed (`ack`, `requeue`, `set_aside`, `unique_keys`). The rest
    belongs to the thread of the consumer, or to the watchdog, which has a client of its own.

    Args:
        id: of the consumer.
        client: for the thread of the consumer.
        leases: of the consumer.
        conversation: what it asks and says on the connection that fetches.
        redelivery: see `Redelivery`.
        expires_ms, collects: see `Consumer`.

    Attributes:
        held: tag -> message that it holds; a view.
        isolation: the message that is held alone, if there is one.
        outbox: tells the server what has become of messages.
        unique_keys: those of the messages.
    """

    def __init__(
        self,
        id: str,
        client: redis.Redis,
        leases: Leases,
        conversation: Conversation,
        *,
        redelivery: Redelivery,
        expires_ms: Mapping[str, int],
        collects: bool,
    ) -> None:
        self.id = id
        self.client = client
        self.leases = leases
        self.conversation = conversation
        self.redelivery = redelivery
        self._collects = collects
        self._held: dict[str, Held] = {}
        self.held = MappingProxyType(self._held)
        self.isolation = Isolation(self._held, self._rewrite)
        self.outbox = Outbox(
            id, leases, self._held, redelivery.put_back, expires_ms, conversation, self._on_acknowledged
        )
        urgency: Urgency = "soon" if collects else "now"
        self.unique_keys = UniqueKeys(self._held, leases.keys_of, partial(conversation.say, urgency=urgency))

    def hold(self, name: str, message: bytes, holder: Holder | None = None) -> str:
        """Remember a fetched message; returns its tag, which is used to acknowledge it.

        Args:
            name: of its list.
            message: its bytes.
            holder: if it holds a unique key.
        """
        tag = str(next(_TAGS))
        self._held[tag] = Held(name, message, holder)
        return tag

    def can_wait(self, tag: str) -> None:
        """Let the acknowledgement of a message wait a few ms for others: it comes when its task is done.

        If the process is killed meanwhile, the task runs again.
        """
        held = self._held.get(tag)
        if held is not None and self._collects:
            self._held[tag] = held._replace(can_wait=True)

    def task_ended(self, tag: str, how: Literal["killed", "rejected"]) -> None:
        """Record how the task of a message has ended, before its message is requeued."""
        held = self._held.get(tag)
        if held is not None:
            self._held[tag] = held._replace(ended=how)

    def has_left(self, tag: str) -> None:
        """Record that a message is not in flight any more: it went to its delayed queue, or others have it."""
        self._let_go(tag)

    def _let_go(self, tag: str) -> Held | None:
        """Hold a message no longer whose task does not begin here, or not again."""
        held = self._held.pop(tag, None)
        if held is not None:
            self.unique_keys.leaves(held)
        return held

    def ack(self, tag: str) -> bool:
        """Acknowledge a message: it is removed for good. One command; O(N) for N messages held for longer.

        Never raises for server or network errors, and waits for no reply; the watchdog repeats what failed.

        Returns:
            False if the message is not held.
        """
        with self.isolation.acknowledging(tag):
            held = self._held.get(tag)
            if held is None or self.outbox.is_under_way(tag):
                return False
            self.isolation.forget(tag)
            urgency: Urgency = "now" if not self._collects else "later" if held.can_wait else "soon"
            self.outbox.leave({tag: Departure(held, "nowhere")}, urgency)
            return True

    def settle(self, client: redis.Redis | None = None) -> bool:
        """Send the server all departures that it may not know about, see `Outbox.settle`."""
        return self.outbox.settle(client or self.client)

    def requeue(self, tag: str, written: bytes | None = None) -> bool:
        """Put a message to the back of its list, marked as redelivered. Returns False if it is not held.

        Never raises for server or network errors; the watchdog repeats what failed. See `_leave` for what it waits for.

        Args:
            tag: of the message.
            written: what to write, if not the message as `Redelivery.put_back` marks it.
        """
        held = self._held.get(tag)
        if held is not None:
            self._leave({tag: Departure(held, "back", written or self.redelivery.put_back(held.message))})
        return held is not None

    def set_aside(self, tag: str, record: bytes) -> None:
        """Let a message be a dead letter with this record. Never raises, see `requeue`."""
        held = self._held.get(tag)
        if held is not None:
            self._leave({tag: Departure(held, "dead", record)})
            self.redelivery.on_count(held.name, DEAD_LETTERS + reason_of(record), 1)
            self.redelivery.on_dead(held.name, record)

    def give_back(self, name: str, messages: Sequence[bytes]) -> None:
        """Put fetched but undelivered messages back to the front of the list, unchanged. The oldest comes first.

        Never raises, see `requeue`.
        """
        back = [Departure(Held(name, message), "front", message) for message in reversed(messages)]
        self._leave({str(next(_TAGS)): departure for departure in back})

    def put_back(self, tags: Sequence[str]) -> None:
        """Put held messages back to the front of their lists, marked as redelivered. The oldest comes first.

        Never raises, see `requeue`.

        Args:
            tags: tags of the messages, in the order of delivery.
        """
        self.conversation.read_answers()
        back: dict[str, Departure] = {}
        for tag in reversed(tags):
            is_done = tag in self.outbox.owed or self.outbox.is_under_way(tag)
            held = None if is_done else self._held.get(tag)
            if held is not None:
                back[tag] = Departure(held, "front", self.redelivery.put_back(held.message))
        self._leave(dict(sorted(back.items(), key=lambda item: item[1].held.name)))

    def _leave(self, departures: Mapping[str, Departure]) -> None:
        """Let messages go elsewhere.

        Without an event loop that reads, the thread that fetches waits for the server: perhaps it reads nothing for as
        long as a task takes.
        """
        self.outbox.expect(departures)  # first: a message that is neither held nor leaving is put back
        for tag in departures:
            self._let_go(tag)
        self.outbox.leave(departures)
        if departures and not self._collects and not self.conversation.is_late:
            self.conversation.read_answers()

    def _on_acknowledged(self, tag: str, was_in_flight: bool) -> None:
        # Not earlier: `Outbox.reconcile` puts back every message that is in flight but not held.
        held = self._held.pop(tag, None)
        if was_in_flight:
            return
        if held is not None and not self.leases.is_lost:
            logger.warning(
                "Consumer %s no longer owns a message of %r: unless it was deleted in Redis, its task may run twice",
                self.id,
                held.name,
            )

    def _rewrite(self, tag: str, new: bytes) -> bool:
        held = self._held[tag]
        queue_keys = self.leases.keys_of(held.name)
        if not scripts.replace(queue_keys, consumer=self.id, message=held.message, new=new).run(self.client):
            return False
        self._held[tag] = held._replace(message=new)
        return True
