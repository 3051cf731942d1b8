"""Delivery: delivers fetched messages to their kombu consumers, one by one, and puts back what cannot be delivered now.

A message that no consumer can take is set aside (`refusal`). A task with a far eta goes to its delayed queue instead
(`eta_tasks`). A message on its last delivery is delivered alone (`last_delivery`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.transport import messages
from celery_delayq.transport.eta_tasks import EtaTasks
from celery_delayq.transport.keyed import holder_of
from celery_delayq.transport.last_delivery import LastDelivery, Turn, isolate
from celery_delayq.transport.protocols import Channel
from celery_delayq.transport.refusal import Refusal


class Delivery:
    """Delivers what a fetcher has fetched. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
        make_way: makes all fetchers of the channel wait for nothing, and give back what they have: a message is to be
            delivered alone.
    """

    def __init__(self, channel: Channel, make_way: Callable[[], None]) -> None:
        self._channel = channel
        self._make_way = make_way
        #: Fetched but undelivered messages: kombu's name of the queue, name of the list, message.
        self._messages: deque[tuple[str, str, bytes]] = deque()
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

    def add(self, queue: str, name: str, fetched: Iterable[bytes]) -> None:
        """Take messages that were fetched from a list of a queue."""
        self._messages.extend((queue, name, message) for message in fetched)

    def clear(self) -> None:
        """Forget the messages: others take them over."""
        self._messages.clear()

    def deliver(self, consumer: Consumer) -> bool:
        """Deliver one message to its kombu consumer; returns whether there was one."""
        if not self._channel.qos.can_consume() or self._channel.connection.stations.is_isolated:
            self.give_back(consumer)
            return False
        while self._messages:
            queue, name, raw = self._messages.popleft()
            payload = messages.decode(raw, objects=True)
            if payload is not None and self._eta_tasks.wait_in_redis(consumer, name, raw, payload):
                continue
            turn = Turn.BESIDE
            if payload is not None and self._last_delivery.concerns(payload):
                turn = self._turn_of(consumer, queue, name, raw)
                if turn not in (Turn.ALONE, Turn.BESIDE):
                    return False
            tag = _hold(consumer, name, raw, payload)
            if payload is None:
                self._refusal.of_no_message(consumer, tag)
                continue
            if self._refusal.before(consumer, tag, payload):
                continue
            if turn is Turn.ALONE and not isolate(consumer, tag):
                return False  # others have taken over; the next fetch says so
            try:
                self._channel.connection._deliver(payload, queue)
            except Exception as exc:
                if not self._refusal.after(consumer, tag, raw, exc):
                    self.callback_error = exc
                    raise
                continue
            return True
        return False

    def _turn_of(self, consumer: Consumer, queue: str, name: str, raw: bytes) -> Turn:
        """Give back all other fetched messages for one on its last delivery. That one may go back too, or wait here."""
        consumer.conversation.read_answers()  # they may be messages, which go back, too
        self._make_way()
        turn = self._last_delivery.turn(raw)
        if turn is Turn.OFFER:
            consumer.give_back(name, [raw])
        elif turn is Turn.KEEP:
            self.add(queue, name, [raw])
        return turn

    def give_back(self, consumer: Consumer | None, unwanted: Callable[[str], bool] = lambda queue: True) -> None:
        """Put undelivered messages back, or those of some queues."""
        back: dict[str, list[bytes]] = {}
        keep: deque[tuple[str, str, bytes]] = deque()
        while self._messages:
            queue, name, message = self._messages.popleft()
            if unwanted(queue):
                back.setdefault(name, []).append(message)
            else:
                keep.append((queue, name, message))
        self._messages = keep
        if not keep:
            self._last_delivery.forget()
        for name, unwanted_messages in back.items():
            assert consumer is not None
            consumer.give_back(name, unwanted_messages)

    # -- basic_get

    def take(self, queue: str) -> Iterator[tuple[str, bytes]]:
        """Yield the undelivered messages of a queue with the names of their lists, and forget each."""
        for entry in [entry for entry in self._messages if entry[0] == queue]:
            self._messages.remove(entry)
            yield entry[1:]

    def first_message(self, consumer: Consumer, fetched: Iterable[tuple[str, bytes]]) -> Any:
        """Return the first of these that is a kombu message, and hold it; set aside what is none before it.

        Returns:
            None if there is none, or if others have taken over.
        """
        for name, raw in fetched:
            payload = messages.decode(raw, objects=True)
            tag = _hold(consumer, name, raw, payload)
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
