"""Fetcher: fetches the messages of a channel's queues, as many as its prefetch limit allows.

If there is a backlog, one script call fetches several messages, but not before the pool needs them. If there is none,
one connection per queue waits on the server, and the watchdog hears of all other lists (`rare_lists`). So an idle
worker neither polls nor delays a message.

A wait is no longer wanted if the prefetch limit is reached or the consumer was cancelled. The server is then told to
end it. A message that arrives all the same goes back at once, so that other workers can take it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from logging import getLogger
from typing import Any, TypeVar

from kombu.utils.scheduling import cycle_by_name
from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import NOT_SERVING, close_idle, passing_refusal, refusals
from celery_delayq.transport.credit import Credit
from celery_delayq.transport.delivery import Delivery
from celery_delayq.transport.protocols import Channel
from celery_delayq.transport.slots import Slot
from celery_delayq.transport.station import Station

logger = getLogger(__name__)

T = TypeVar("T")

#: Pause before a list that the server refused (its memory is full, for example) is tried again, in seconds.
_REFUSED_S = 1.0

#: How long to do without connections that wait, if the server has none left, in seconds.
_SPARING_S = 30.0

#: Interval at which replies to acknowledgements are read while nothing is fetched, in seconds.
_ANSWERS_S = 1.0

#: How long all lists count as waited for, if nothing happens, in seconds.
_SETTLED_S = 1.0


class Fetcher:
    """Fetches for one channel. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
        station: returns the station of the channel's connection; called at the first fetch.
    """

    #: The server that it fetches from, as `Transport.station` names it.
    server = ""

    def __init__(self, channel: Channel, station: Callable[[], Station]) -> None:
        self._channel = channel
        self._station_of = station
        self._station: Station | None = None
        self._credit = Credit(channel)
        self._delivery = Delivery(channel, self._clear_the_way)
        self._cycle = cycle_by_name(channel.queue_order_strategy)()
        #: Queue -> its lists, one per priority.
        self._names: dict[str, list[str]] = {}
        self._slots: dict[str, Slot] = {}
        #: List -> when to try it again (monotonic), and the server's error.
        self._refused: dict[str, tuple[float, str]] = {}
        self._can_unblock = True
        self._answers_at = self._sparing_until = 0.0
        #: All lists are waited for until this time (monotonic), so there is nothing to fetch.
        self._settled_until = 0.0
        #: Whether the watchdog has heard of a message since the last fetch began.
        self._has_news = False
        #: The lists that the last fetch has found empty; None if it has not looked at all of them.
        self._idle: list[tuple[str, str]] | None = None
        #: Whether the last fetch ended because there was no credit.
        self.is_starved = False
        #: The queue and the list that were asked for messages last.
        self._asking = "", ""

    @property
    def _consumer(self) -> Consumer | None:
        return None if self._station is None else self._station.consumer

    def _begin(self) -> Station:
        if self._station is None:
            self._station = self._station_of()
        return self._station

    # -- which queues

    def _queues(self) -> list[str]:
        """Return the queues to fetch from, each once."""
        return list(dict.fromkeys(self._channel.task_queues.values()))

    def on_queues_changed(self) -> None:
        """Follow a change of `channel.task_queues`: hand back the messages of queues that are no longer consumed."""
        self._settled_until = 0.0
        queues = self._queues()
        self._cycle.update(queues)
        gone = [slot for slot in self._slots.values() if slot.queue not in queues]
        self._disarm(gone)
        for slot in gone:
            if not slot.is_armed:  # an armed slot goes when the server has answered, perhaps with a message
                self._drop(slot)
        self._delivery.give_back(self._consumer, lambda queue: queue not in queues)
        if self._consumer is not None:
            for name in self._consumer.names - {name for _, name in self._lists(queues)} - self._slots.keys():
                self._consumer.part(name)

    def tidy(self) -> None:
        """End the leases on lists that are no longer fetched from, once none of their messages is held.

        Call it about once a second.
        """
        consumer = self._consumer
        if consumer is None or consumer.lists.keys() == consumer.names:
            return
        consumer.read_answers()  # no other fetch may read them
        try:
            consumer.end_leases()
        except exceptions.ResponseError as exc:
            if isinstance(exc, NOT_SERVING) or not refusals.note(exc, logger):
                raise

    def _lists(self, queues: list[str]) -> Iterator[tuple[str, str]]:
        """Yield queues with their lists, in the order in which kombu reads them."""
        names = [self._names_of(queue) for queue in queues]
        for at_priority in zip(*names, strict=True):
            yield from zip(queues, at_priority, strict=True)

    def _names_of(self, queue: str) -> list[str]:
        names = self._names.get(queue)
        if names is None:
            names = self._names[queue] = self._channel.broker_lists(queue)
        return names

    @property
    def has_queues(self) -> bool:
        """Whether there is any queue to fetch from."""
        return bool(self._channel.task_queues) and self._channel.ack_emulation

    @property
    def is_consuming(self) -> bool:
        """Whether it waits for messages, or has undelivered ones."""
        return bool(self._slots or self._delivery)

    # -- fetching

    def credit(self) -> int:
        """Return how many messages may be fetched now."""
        if not self._channel.qos.can_consume() or self._delivery.is_isolated:
            return 0
        return self._credit.left()

    def _read_answers(self) -> None:
        """Read the replies to acknowledgements once a second, if no fetch does. They also reveal a lost connection."""
        if self._consumer is not None and time.monotonic() >= self._answers_at:
            self._answers_at = time.monotonic() + _ANSWERS_S
            self._consumer.read_answers()

    def send_acks(self, *, is_busy: bool) -> bool:
        """Send the acknowledgements that wait, unless more will follow soon; see `Consumer.send_acks`."""
        if self._consumer is None:
            return False
        return self._consumer.send_acks(is_busy=is_busy or self._credit.is_patient)

    def fill(self) -> bool:
        """Fetch, or wait on the server if there is nothing to fetch. Returns whether there is something to deliver.

        Raises:
            LeaseLost: others have given the consumer up; the caller has to reconnect.
            redis.ConnectionError: the connection is lost.
        """
        if self.fetch():
            return True
        self.wait()
        return False

    def fetch(self) -> bool:
        """Fetch, but do not wait, see `fill`."""
        self._idle = None
        self._has_news = False
        if self.has_fetched:
            return True
        if not self.has_queues:
            return False
        if self._consumer is not None:
            self._consumer.check()  # first: messages that others have taken over must not use up credit
            if self._consumer.has_lost_reply:
                raise exceptions.ConnectionError("a reply that may have had messages was lost")
        credit = self.credit()
        self.is_starved = credit == 0
        if not credit or self._credit.can_wait(credit):
            self._disarm(self._slots.values())
            self._read_answers()
            return False
        if time.monotonic() < self._settled_until:
            self._read_answers()
            return False
        station = self._begin()
        consumer, rare = station.consumer, station.rare_lists
        queues = self._cycle.consume(len(self._queues()))
        if not queues:  # on a cluster, the last one has moved to another node just now
            return False
        # Each queue gets a share, so that the order strategy still works if several messages are fetched at once.
        share = max(1, credit // len(queues)) if self._is_fair() else credit
        lists = [(queue, name) for queue, name in self._lists(queues) if not self._is_refused(name)]
        # Join all lists, even if the first has messages: a consumer sees gone ones only on lists that it has joined.
        lists = [(queue, name) for queue, name in lists if self._ask(name, self._join, consumer, name)]
        rare.look([name for queue, name in lists if self._is_rare(queue, name)])
        idle = []
        for queue, name in lists:
            if rare.are_awaited([name]):
                continue  # the server would have told
            slot = self._slots.get(name)
            if slot is not None and slot.is_armed:
                if slot.is_overdue():
                    self._on_connection_lost()
                    raise exceptions.ConnectionError(f"Redis did not answer the wait for messages of {name!r}")
                continue  # the server would have answered
            self._asking = queue, name
            found = self._ask(name, consumer.fetch, name, share)
            if found is None:
                continue
            self._refused.pop(name, None)
            if found:
                self._cycle.rotate(queue)
                self._delivery.add(queue, name, found)
                if len(found) >= credit:
                    # While these tasks run, no further message may wait here.
                    self._disarm(self._slots.values())
                return True
            idle.append((queue, name))
        consumer.read_answers()
        self._idle = idle
        return False

    @property
    def is_empty(self) -> bool:
        """Whether the last fetch has found no message in any list."""
        return self._idle is not None

    def wait(self) -> None:
        """Wait on the server for messages in the lists that `fetch` has found empty."""
        station, idle = self._station, self._idle
        if station is None or idle is None:
            return
        self._idle = None
        if not self.is_sparing and self._wait(station, idle) and not any(map(self._is_refused, self._refused)):
            self._settled_until = time.monotonic() + _SETTLED_S
            if self._has_news:
                self._settled_until = 0.0

    def _wait(self, station: Station, idle: list[tuple[str, str]]) -> bool:
        """Make the server say when there is a message in one of these lists; returns False if it may not say so."""
        rare = [name for queue, name in idle if self._is_rare(queue, name)]
        for queue, name in idle:
            if name not in rare:
                self._ask(name, self._arm, station.consumer, queue, name)
        return not rare or station.rare_lists.wait(rare)

    def _is_rare(self, queue: str, name: str) -> bool:
        """Return whether a list takes no connection of its own: it is not the first of its queue, nor is it busy."""
        assert self._station is not None
        return name != self._names_of(queue)[0] and name not in self._slots and self._station.rare_lists.may_have(name)

    def maxclients(self) -> str:
        """Return the server's limit of connections, as a part of a sentence; empty if it does not tell."""
        with suppress(exceptions.RedisError):
            limit = self._channel.plain_client.info("clients").get("maxclients")
            return f" of {limit}" if limit else ""
        return ""

    @property
    def is_sparing(self) -> bool:
        """Whether it does without connections that wait."""
        return time.monotonic() < self._sparing_until

    @property
    def is_in_the_way(self) -> bool:
        """Whether it may have connections that wait, although the server has none left for leases and transfers."""
        return not self.is_sparing and self._channel.connection.is_full(self.server)

    def spare_connections(self) -> None:
        """Do without connections that wait, for a while: the server has none left for leases and transfers."""
        self._sparing_until = time.monotonic() + _SPARING_S
        self._disarm(self._slots.values())
        for slot in list(self._slots.values()):
            if not slot.is_armed:
                self._drop(slot)
        if self._consumer is not None:
            close_idle(self._consumer.client)

    def _is_fair(self) -> bool:
        return str(self._channel.queue_order_strategy) == "round_robin"

    def _ask(self, name: str, question: Callable[..., T], *args: Any) -> T | None:
        """Ask the server about a list; returns its answer, or None if it refuses that list."""
        try:
            return question(*args)
        except exceptions.ResponseError as exc:
            if self._is_elsewhere(name, exc):
                return None
            if isinstance(exc, NOT_SERVING):
                raise exceptions.ConnectionError(str(exc)) from exc
            self._on_refused(name, exc)
            return None

    def _is_elsewhere(self, name: str, exc: exceptions.ResponseError) -> bool:
        """Return whether an error says that a list is on its way to another server, so that it is tried again soon."""
        return False

    def _join(self, consumer: Consumer, name: str) -> bool:
        consumer.join(name)
        return True

    def _arm(self, consumer: Consumer, queue: str, name: str) -> None:
        if self.is_sparing:
            return
        slot = self._slots.get(name)
        if slot is not None and slot.is_forgotten:
            self._drop(slot)
            slot = None
        if slot is None:
            in_flight = consumer.lists[name].in_flight(consumer.id)
            slot = self._slots[name] = Slot(consumer.client.connection_pool, queue, name, in_flight)
            consumer.waits.append(slot.identity)
            self._channel.connection.cycle.add_slot(slot, self)
        slot.arm()

    def unsettle(self) -> None:
        """Look at all lists again at the next fetch. Safe in any thread."""
        self._has_news = True  # first: `wait` looks after it has settled
        self._settled_until = 0.0

    def on_readable(self, slot: Slot) -> None:
        """Take the message that a slot has waited for.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        self._settled_until = 0.0
        if not slot.is_armed:  # nothing was lost with its connection
            if slot.is_forgotten:
                self._drop(slot)
            return
        try:
            if not slot.has_reply():
                return
        except Exception:
            self._on_connection_lost()
            raise
        message = self._read(slot)
        if slot.queue not in self._queues():
            self._dismiss(slot, message)
        elif message is not None:
            assert self._station is not None
            refusals.end(self._station.consumer.client, logger, has_added=True)
            self._cycle.rotate(slot.queue)
            self._delivery.add(slot.queue, slot.name, [message])
            if self.credit() <= 1:
                self._disarm(self._slots.values())
        elif slot.name not in self._refused and self.credit():
            assert self._consumer is not None
            self._ask(slot.name, self._arm, self._consumer, slot.queue, slot.name)

    def _read(self, slot: Slot) -> bytes | None:
        try:
            return self._ask(slot.name, slot.read)
        except Exception:
            self._on_connection_lost()
            raise

    def _is_refused(self, name: str) -> bool:
        refused = self._refused.get(name)
        return refused is not None and time.monotonic() < refused[0]

    def _on_refused(self, name: str, exc: Exception) -> None:
        known = self._refused.get(name)
        if not refusals.note(exc, logger) and (known is None or known[1] != str(exc)):
            logger.error("Cannot fetch messages of %r, trying again every second: %s", name, exc)
        self._refused[name] = (time.monotonic() + _REFUSED_S, str(exc))
        self._channel.connection.cycle.wake_in(_REFUSED_S)

    def _on_connection_lost(self) -> None:
        """Abandon the connections: a reply may be lost, and a message in flight with it. The consumer is not reused."""
        if self._consumer is not None:
            self._consumer.abandon(slot.identity for slot in self._slots.values())

    # -- not waiting any more

    def _disarm(self, slots: Any) -> None:
        """Unblock waiting slots; a message that arrives all the same goes back at once."""
        armed = [slot for slot in slots if slot.is_armed]
        if not armed or self._consumer is None or not self._can_unblock:
            return
        self._settled_until = 0.0
        try:
            if not self._unblock(self._consumer, armed):
                return
        except NOT_SERVING:
            raise
        except exceptions.ResponseError as exc:
            if passing_refusal(exc):
                return  # what comes goes back, or is held beyond the limit
            logger.info("Redis does not allow this user to unblock its own connections: %s. Allow CLIENT UNBLOCK", exc)
            self._can_unblock = False
            return
        for slot in armed:
            message = self._read(slot)
            if message is not None:
                self._consumer.give_back(slot.name, [message])

    def _unblock(self, consumer: Consumer, armed: list[Slot]) -> bool:
        """Make the server end the waits of slots, so that there is a reply to each; returns False to leave them."""
        for slot in armed:
            slot.unblock(consumer.client)
        return True

    def _dismiss(self, slot: Slot, message: bytes | None) -> None:
        """Drop a slot whose queue is no longer consumed, and give back the message that it received."""
        assert self._consumer is not None
        if message is not None:
            self._consumer.give_back(slot.name, [message])
        self._drop(slot)
        self._consumer.part(slot.name)

    def _clear_the_way(self) -> None:
        """Make all fetchers of the channel wait for no message, and give back what they have."""
        self.make_way()

    def make_way(self) -> None:
        """Wait for no message, and give back those that are fetched but not delivered."""
        self._disarm(self._slots.values())
        self._delivery.give_back(self._consumer)

    # -- delivering

    @property
    def has_fetched(self) -> bool:
        """Whether there is something to deliver."""
        return self._delivery.has_next

    @property
    def undelivered(self) -> int:
        """The number of messages that are fetched but not delivered."""
        return len(self._delivery)

    @property
    def callback_error(self) -> BaseException | None:
        """What the callback of a kombu consumer has raised last, see `Delivery`."""
        return self._delivery.callback_error

    def deliver(self) -> bool:
        """Deliver one fetched message to its kombu consumer; returns whether there was one."""
        if not self.has_fetched:
            return False
        consumer = self._consumer
        assert consumer is not None
        consumer.check()
        return self._delivery.deliver(consumer)

    def get(self, queue: str) -> Any:
        """Return one message of a queue as a kombu message, even if others consume the queue; None if it is empty."""
        consumer = self._begin().consumer
        consumer.check()
        if not self._channel.connection.cycle.is_consuming:
            consumer.recover_lost()
        return self._delivery.first_message(consumer, self._messages(consumer, queue))

    def _messages(self, consumer: Consumer, queue: str) -> Iterator[tuple[str, bytes]]:
        """Yield messages of a queue, one by one. Messages that were already fetched for its consumer come first."""
        yield from self._delivery.take(queue)
        for _, name in self._lists([queue]):
            if name not in consumer.lists:
                consumer.join(name)
            while found := consumer.fetch(name, 1, is_patient=True):
                yield name, found[0]

    # -- the end

    def close(self) -> None:
        """Stop waiting for messages, and put undelivered ones back. Never raises."""
        consumer = self._consumer
        try:
            if consumer is None or not (consumer.is_closed or consumer.is_unanswered):
                self.make_way()
        except exceptions.TimeoutError as exc:  # whoever closes waits once for a server that does not answer
            assert consumer is not None
            consumer.give_up(exc)
        except (LeaseLost, OSError, exceptions.RedisError):
            pass
        except Exception:  # Celery swallows errors here, and the messages would wait until the worker ends
            logger.exception("Cannot put back undelivered messages yet: they will go back with the delivered ones")
        if consumer is not None and consumer.is_unanswered:
            self._delivery.give_back(consumer)
        if any(slot.is_armed for slot in self._slots.values()):
            self._on_connection_lost()
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections."""
        self._settled_until = 0.0
        for slot in list(self._slots.values()):
            self._drop(slot)
        self._delivery.clear()

    def _drop(self, slot: Slot) -> None:
        self._settled_until = 0.0
        del self._slots[slot.name]
        if self._consumer is not None:
            self._consumer.waits.remove(slot.identity)
        if self._channel.connection is not None:
            self._channel.connection.cycle.remove_slot(slot)
        slot.disconnect()
