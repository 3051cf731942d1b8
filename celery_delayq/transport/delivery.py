"""Delivery: delivers fetched messages to their kombu consumers, one by one, and puts back what cannot be delivered now.

A message that no consumer can take is set aside (`refusal`). A task with a far eta goes to its delayed queue instead
(`eta_tasks`). A message on its last delivery is delivered alone (`last_delivery`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.transport import messages, redelivery
from celery_delayq.transport.eta_tasks import EtaTasks
from celery_delayq.transport.keyed import holder_of
from celery_delayq.transport.last_delivery import LastDelivery, Turn, isolate
from celery_delayq.transport.protocols import Channel, Siblings
from celery_delayq.transport.refusal import Refusal

if TYPE_CHECKING:
    from celery_delayq.transport.fetcher import Fetcher


class _Fetched(NamedTuple):
    """A message that is fetched but not delivered: who has fetched it, kombu's name of the queue, name of the list."""

    fetcher: Fetcher
    queue: str
    name: str
    raw: bytes


class Delivery:
    """Delivers what the fetchers of a channel have fetched. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
        fetchers: those of the channel.
    """

    def __init__(self, channel: Channel, fetchers: Siblings) -> None:
        self._channel = channel
        self._fetchers = fetchers
        self._messages: deque[_Fetched] = deque()
        self._eta_tasks = EtaTasks(channel)
        self._last_delivery: LastDelivery = channel.connection.last_delivery
        self._refusal = Refusal(channel)
        #: What the callback of a kombu consumer has raised last. It may be an error of a connection, but not of ours.
        self.callback_error: BaseException | None = None

    def __len__(self) -> int:
        """Return the number of messages that are fetched but not delivered."""
        return len(self._messages)

    @property
    def has_next(self) -> bool:
        """Whether there is something to deliver now."""
        return bool(self._messages) and not self._last_delivery.is_waiting

    @property
    def is_isolated(self) -> bool:
        """Whether a message is delivered alone, or waits for that."""
        return self._last_delivery.is_waiting or bool(self._channel.connection.stations.is_isolated)

    def has(self, fetcher: Fetcher) -> bool:
        """Return whether it has messages of a fetcher."""
        return any(fetched.fetcher is fetcher for fetched in self._messages)

    def add(self, fetcher: Fetcher, queue: str, name: str, messages: Iterable[bytes]) -> None:
        """Take messages that a fetcher has fetched from a list of a queue."""
        self._messages.extend(_Fetched(fetcher, queue, name, raw) for raw in messages)

    def clear(self, fetcher: Fetcher) -> None:
        """Forget the messages of a fetcher: others take them over."""
        self._messages = deque(fetched for fetched in self._messages if fetched.fetcher is not fetcher)

    def deliver(self) -> bool:
        """Deliver one message to its kombu consumer; returns whether there was one."""
        if not self._messages:
            return False
        may_deliver = self._channel.qos.can_consume() and not self._channel.connection.stations.is_isolated
        while self.has_next:
            fetched = self._messages[0]
            if not may_deliver:
                self._fetchers.attempt(fetched.fetcher, self.give_back)
            elif self._fetchers.attempt(fetched.fetcher, self._deliver_first):
                return True
            elif self._messages and self._messages[0] is fetched:  # its server has no connection left, for example
                self.give_back(fetched.fetcher)
        return False

    def _deliver_first(self, fetcher: Fetcher) -> bool:
        """Deliver the first message; returns False if it cannot be delivered, or not now."""
        consumer = fetcher.consumer
        assert consumer is not None
        consumer.check()
        fetched = self._messages.popleft()
        _, queue, name, raw = fetched
        payload = messages.decode(raw, objects=True)
        if payload is not None and messages.is_cancelled(payload):  # before anybody waits for its turn
            consumer.ack(_hold(consumer, name, raw, payload))
            return False
        turn = Turn.BESIDE
        try:
            if payload is not None and self._eta_tasks.wait_in_redis(consumer, name, raw, payload):
                return False
            if payload is not None and self._last_delivery.concerns(payload):
                turn = self._turn_of(fetcher, consumer, queue, name, raw)
        except Exception:
            self._messages.appendleft(fetched)
            raise
        if turn not in (Turn.ALONE, Turn.BESIDE):
            return False
        tag = _hold(consumer, name, raw, payload)
        if payload is None:
            self._refusal.of_no_message(consumer, tag)
            return False
        if self._refusal.before(consumer, tag, payload):
            return False
        try:
            if turn is Turn.ALONE and not isolate(consumer, tag):
                return False  # others have taken over; the next fetch says so
        except Exception:
            consumer.put_back([tag])
            raise
        redelivery.hide(payload)
        try:
            self._channel.connection._deliver(payload, queue)
        except Exception as exc:
            if not self._refusal.after(consumer, tag, raw, exc):
                self.callback_error = exc
                raise
            return False
        return True

    def _turn_of(self, fetcher: Fetcher, consumer: Consumer, queue: str, name: str, raw: bytes) -> Turn:
        """Give back all other fetched messages for one on its last delivery. That one may go back too, or wait here."""
        consumer.conversation.read_answers()  # they may be messages, which go back, too
        self._fetchers.make_way(fetcher)
        turn = self._last_delivery.turn(raw)
        if turn is Turn.OFFER:
            consumer.give_back(name, [raw])
        elif turn is Turn.KEEP:
            self.add(fetcher, queue, name, [raw])
        return turn

    def give_back(self, fetcher: Fetcher, unwanted: Callable[[str], bool] = lambda queue: True) -> None:
        """Put undelivered messages of a fetcher back, or those of some queues."""
        back: dict[str, list[bytes]] = {}
        keep: deque[_Fetched] = deque()
        for fetched in self._messages:
            if fetched.fetcher is fetcher and unwanted(fetched.queue):
                back.setdefault(fetched.name, []).append(fetched.raw)
            else:
                keep.append(fetched)
        self._messages = keep
        if not keep:
            self._last_delivery.forget()
        for name, raws in back.items():
            assert fetcher.consumer is not None
            fetcher.consumer.give_back(name, raws)

    # -- basic_get

    def take(self, fetcher: Fetcher, queue: str) -> Iterator[tuple[str, bytes]]:
        """Yield a fetcher's undelivered messages of a queue with the names of their lists, and forget each."""
        for fetched in [it for it in self._messages if it.fetcher is fetcher and it.queue == queue]:
            self._messages.remove(fetched)
            yield fetched.name, fetched.raw

    def first_message(self, consumer: Consumer, fetched: Iterable[tuple[str, bytes]]) -> Any:
        """Return the first of these that is a kombu message, and hold it; set aside what is none before it.

        Returns:
            None if there is none, or if others have taken over.
        """
        for name, raw in fetched:
            payload = messages.decode(raw, objects=True)
            tag = _hold(consumer, name, raw, payload)
            if payload is not None and messages.is_cancelled(payload):
                consumer.ack(tag)
                continue
            if payload is not None:
                if self._last_delivery.concerns(payload) and len(consumer.held) == 1 and not isolate(consumer, tag):
                    return None
                message = self._refusal.to_message(payload)
                if message is not None:
                    return message
            self._refusal.of_no_message(consumer, tag)
        return None


def _hold(consumer: Consumer, name: str, raw: bytes, payload: dict[str, Any] | None) -> str:
    """Hold a message, and write its tag into the payload: that of the producer may occur twice."""
    tag = consumer.hold(name, raw, None if payload is None else holder_of(payload))
    if payload is not None:
        payload["properties"]["delivery_tag"] = tag
    return tag
