"""Fetcher: fetches the messages of a channel's queues, as many as its prefetch limit allows.

If there is a backlog, one script call fetches several messages, but not before the pool needs them. The answer comes
while the thread does other things. If there is no backlog, one connection per queue waits on the server (`waits`), and
the watchdog hears of all other lists (`rare_lists`). So an idle worker neither polls nor delays a message.

A wait is no longer wanted if the prefetch limit is reached or the consumer was cancelled. The server is then told to
end it. A message that arrives all the same goes back at once, so that other workers can take it.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple, TypeVar

from kombu.utils.scheduling import cycle_by_name
from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.basics.weak import call_of
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.conversation import LATE_ANSWER_S, PATIENCE_S, Found
from celery_delayq.queue.connections import NOT_SERVING, close_idle, refusals
from celery_delayq.transport.credit import Credit
from celery_delayq.transport.delivery import Delivery
from celery_delayq.transport.protocols import Channel
from celery_delayq.transport.slots import Slot
from celery_delayq.transport.station import Station
from celery_delayq.transport.waits import Waits

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


class _Asked(NamedTuple):
    """A question to a list: for how many messages, and since when (monotonic)."""

    name: str
    limit: int
    at: float


class Fetcher:
    """Fetches for one channel. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
        station: returns the station of the channel's connection; called at the first fetch.
    """

    #: The server that it fetches from, as `Transport.station` names it.
    server = ""

    #: How long its thread waits at most until the server has ended waits, in seconds.
    patience_s = PATIENCE_S

    def __init__(self, channel: Channel, station: Callable[[], Station]) -> None:
        self._channel = channel
        self._station_of = station
        self._station: Station | None = None
        self._credit = Credit(channel)
        self._delivery = Delivery(channel, self._clear_the_way)
        self._cycle = cycle_by_name(channel.queue_order_strategy)()
        #: Queue -> its lists, one per priority.
        self._names: dict[str, list[str]] = {}
        self._waits = Waits(channel.connection.cycle, self)
        #: List -> when to try it again (monotonic), and the server's error.
        self._refused: dict[str, tuple[float, str]] = {}
        self._answers_at = self._sparing_until = 0.0
        #: All lists are waited for until this time (monotonic), so there is nothing to fetch.
        self._settled_until = 0.0
        #: Whether the watchdog has heard of a message since the last round began.
        self._has_news = False
        #: The lists that this round still has to ask, and those that it has found empty. None: there is no round.
        self._to_ask: deque[tuple[str, str]] | None = None
        self._idle: list[tuple[str, str]] = []
        #: What was asked and has no answer.
        self._asked: _Asked | None = None
        #: Whether a list has said that the consumer has no lease; and what a list has said that ends the connection.
        self._has_no_lease = False
        self._failure = ""
        self._is_closed = False
        #: Whether the last fetch ended because there was no credit.
        self.is_starved = False

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
        self._settled_until, self._to_ask = 0.0, None
        queues = self._queues()
        self._cycle.update(queues)
        gone = [slot for slot in self._waits.all if slot.queue not in queues]
        self._end_waits(gone)
        for slot in gone:
            if not slot.is_armed:  # an armed slot goes when the server has answered, perhaps with a message
                self._drop(slot)
        self._delivery.give_back(self._consumer, lambda queue: queue not in queues)
        if self._consumer is not None:
            for name in self._consumer.names - {name for _, name in self._lists(queues)}:
                if not self._waits.has(name) and (self._asked is None or name != self._asked.name):
                    self._consumer.part(name)

    def tidy(self) -> None:
        """End the leases on lists that are no longer fetched from, once none of their messages is held.

        Call it about once a second.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        self._check_lost()
        consumer = self._consumer
        if consumer is None or consumer.lists.keys() == consumer.names or consumer.is_late:
            return
        consumer.read()  # no other fetch may read them
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
        return bool(self._waits or self._delivery or self._asked)

    # -- fetching

    def credit(self) -> int:
        """Return how many messages may be fetched now."""
        if not self._channel.qos.can_consume() or self._delivery.is_isolated:
            return 0
        return self._credit.left()

    def _read(self) -> None:
        """Handle the replies to acknowledgements once a second. They also reveal a lost connection."""
        if self._consumer is not None and time.monotonic() >= self._answers_at:
            self._answers_at = time.monotonic() + _ANSWERS_S
            self._consumer.read()

    def send_acks(self, *, is_busy: bool) -> bool:
        """Send the acknowledgements that wait, unless more will follow soon; see `Consumer.send_acks`."""
        if self._consumer is None:
            return False
        return self._consumer.send_acks(is_busy=is_busy or self._credit.is_patient)

    def fill(self) -> None:
        """Ask for messages, or wait on the server if there are none.

        Raises:
            LeaseLost: others have given the consumer up; the caller has to reconnect.
            redis.ConnectionError: the connection is lost.
        """
        if not self.is_empty:
            self.ask()
        if self.is_empty:
            self.wait()

    def ask(self) -> None:
        """Ask for messages, but do not wait on the server, see `fill`. What comes is delivered later, see `deliver`."""
        if self.has_fetched or not self.has_queues:
            return
        self._check_lost()
        if self._consumer is not None:
            if self._has_no_lease:
                self._consumer.renew()
                self._has_no_lease = False
            self._consumer.check()  # first: messages that others have taken over must not use up credit
        if self._asked is not None:
            assert self._consumer is not None
            self._consumer.read()  # perhaps it has come while a task ran, or is overdue
            if self._asked is not None or self.has_fetched or self.is_empty:
                return
        credit = self.credit()
        self.is_starved = credit == 0
        if not credit or self._credit.can_wait(credit):
            self._to_ask = None
            self._end_waits(self._waits.all)
            self._read()
            return
        if time.monotonic() < self._settled_until:
            self._read()
            return
        if not self._to_ask:
            self._begin_round()
        self._ask_next()

    def _check_lost(self) -> None:
        if self._failure:
            raise exceptions.ConnectionError(self._failure)
        if self._consumer is not None and self._consumer.lost:
            raise exceptions.ConnectionError(f"a reply that may have had messages was lost: {self._consumer.lost}")

    def _begin_round(self) -> None:
        """Choose which lists to ask."""
        self._has_news = False
        self._idle = []
        station = self._begin()
        queues = self._cycle.consume(len(self._queues()))
        if not queues:  # on a cluster, the last one has moved to another node just now
            return
        lists = [(queue, name) for queue, name in self._lists(queues) if not self._is_refused(name)]
        # Join all lists, even if the first has messages: a consumer sees gone ones only on lists that it has joined.
        lists = [(queue, name) for queue, name in lists if self._try(name, self._join, station.consumer, name)]
        rare = [name for queue, name in lists if self._is_rare(queue, name)]
        if rare:
            station.rare_lists.wait(rare)
        self._to_ask = deque(
            (queue, name) for queue, name in lists if name not in rare or station.rare_lists.may_have_messages(name)
        )

    def _ask_next(self) -> None:
        """Ask the next list of the round, if the server would not have told of its messages."""
        while self._to_ask:
            queue, name = self._to_ask.popleft()
            if self._waits.is_armed(name):
                continue
            credit = self.credit()
            if not credit or queue not in self._queues():
                self._to_ask = None
                return
            # Each queue gets a share, so that the order strategy still works if several messages are fetched at once.
            share = max(1, credit // len(self._queues())) if self._is_fair() else credit
            assert self._consumer is not None
            self._asked = _Asked(name, share, time.monotonic())
            try:
                if self._try(name, self._question, queue, name, share):
                    return
            except BaseException:
                self._asked = None
                raise
            self._asked = None

    def _question(self, queue: str, name: str, share: int) -> bool:
        assert self._consumer is not None
        self._consumer.ask(name, share, partial(call_of, weakref.ref(self), "on_found", queue, name))
        return True

    def on_found(self, queue: str, name: str, found: Found) -> None:
        """Handle the answer of a list. Whatever has happened since it was asked, its messages are not lost."""
        assert self._station is not None
        assert self._consumer is not None
        self._asked = None
        if queue not in self._queues() and not self._waits.has(name):
            self._consumer.part(name)
        if found is None or isinstance(found, BaseException):
            self._on_no_answer(name, found)
        else:
            self._refused.pop(name, None)
            if found:
                self._to_ask = None
                self.take(queue, name, found)
                return
            self._idle.append((queue, name))
            self._station.rare_lists.is_empty(name)
        if self._to_ask:
            try:
                self._ask_next()
            except exceptions.RedisError:  # the next `ask` meets it, too
                self._to_ask = None

    def _on_no_answer(self, name: str, error: BaseException | None) -> None:
        """Go on with the other lists if the server refuses one. Otherwise, the next `ask` says what is wrong."""
        try:
            if isinstance(error, exceptions.ResponseError):
                self._on_error(name, error)
                return
        except exceptions.ConnectionError as exc:
            self._failure = str(exc)
        self._has_no_lease |= error is None
        self._to_ask = None
        self._channel.connection.cycle.wake()

    def take(self, queue: str, name: str, messages: list[bytes]) -> None:
        """Take messages that have come. Those that are not wanted any more go back."""
        consumer = self._consumer
        assert consumer is not None
        if self._is_closed or queue not in self._queues() or self._delivery.is_isolated:
            consumer.give_back(name, messages)
            return
        credit = self.credit()
        self._cycle.rotate(queue)
        self._delivery.add(queue, name, messages)
        if credit <= len(messages):  # while these tasks run, no further message may wait here
            self._end_waits(self._waits.all)

    @property
    def asked(self) -> int:
        """How many messages may be on their way. Not if their answer is late: then others may have the credit."""
        is_late = self._asked is None or time.monotonic() > self._asked.at + LATE_ANSWER_S
        return 0 if self._asked is None or is_late else self._asked.limit

    @property
    def is_empty(self) -> bool:
        """Whether the last round has found no message in any list."""
        return self._to_ask is not None and not self._to_ask and self._asked is None

    def wait(self) -> None:
        """Wait on the server for messages in the lists that were found empty."""
        station, idle = self._station, self._idle
        self._to_ask, self._idle = None, []
        if self.is_sparing:
            self._settled_until = time.monotonic() + _SETTLED_S
        elif station is not None and self.credit():
            self._wait(station, idle)
            if not any(map(self._is_refused, self._refused)):
                self._settled_until = time.monotonic() + _SETTLED_S
                if self._has_news:
                    self._settled_until = 0.0
                    self._channel.connection.cycle.wake()

    def _wait(self, station: Station, idle: list[tuple[str, str]]) -> None:
        """Make the server say when there is a message in one of these lists."""
        rare = [name for queue, name in idle if self._is_rare(queue, name)]
        for queue, name in idle:
            if name not in rare:
                self._try(name, self._arm, station.consumer, queue, name)
        if rare:
            station.rare_lists.wait(rare)

    def _is_rare(self, queue: str, name: str) -> bool:
        """Return whether a list takes no connection of its own: it is not the first of its queue, nor is it busy."""
        if name == self._names_of(queue)[0] or self._waits.has(name):
            return False
        assert self._station is not None
        return self._station.rare_lists.may_have(name)

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
        self._end_waits(self._waits.all)
        for slot in self._waits.all:
            if not slot.is_armed:
                self._drop(slot)
        if self._consumer is not None:
            close_idle(self._consumer.client)

    def _is_fair(self) -> bool:
        return str(self._channel.queue_order_strategy) == "round_robin"

    def _try(self, name: str, action: Callable[..., T], *args: Any) -> T | None:
        """Do something that the server may refuse for a list; returns None then."""
        try:
            return action(*args)
        except exceptions.ResponseError as exc:
            self._on_error(name, exc)
            return None

    def _on_error(self, name: str, exc: exceptions.ResponseError) -> None:
        if self._is_elsewhere(name, exc):
            return
        if isinstance(exc, NOT_SERVING):
            raise exceptions.ConnectionError(str(exc)) from exc
        self._on_refused(name, exc)

    def _is_elsewhere(self, name: str, exc: exceptions.ResponseError) -> bool:
        """Return whether an error says that a list is on its way to another server, so that it is tried again soon."""
        return False

    def _join(self, consumer: Consumer, name: str) -> bool:
        consumer.join(name)
        return True

    def _arm(self, consumer: Consumer, queue: str, name: str) -> None:
        if not self.is_sparing:
            self._waits.arm(consumer, queue, name)

    def unsettle(self) -> None:
        """Look at all lists again at the next fetch. Safe in any thread."""
        self._has_news = True  # first: `wait` looks after it has settled
        self._settled_until = 0.0

    def on_readable(self, slot: Slot) -> None:
        """Take the message that a slot has waited for.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        self.unsettle()
        if not slot.is_armed:  # nothing was lost with its connection
            if slot.is_forgotten:
                self._drop(slot)
            return
        try:
            if not slot.has_reply():
                return
            message = self._try(slot.name, slot.read)
        except Exception:
            self._on_connection_lost()
            raise
        assert self._consumer is not None
        if message is not None:
            refusals.end(self._consumer.client, logger, has_added=True)
            self.take(slot.queue, slot.name, [message])
        if slot.queue not in self._queues():
            self._drop(slot)
            self._consumer.part(slot.name)
        elif self.is_sparing:
            self._drop(slot)
        elif message is None and slot.name not in self._refused and self._asked is None and self.credit():
            self._try(slot.name, self._arm, self._consumer, slot.queue, slot.name)

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
            self._consumer.abandon(slot.identity for slot in self._waits.all)

    # -- not waiting any more

    def _end_waits(self, slots: Collection[Slot]) -> None:
        """End waits; a message that arrives all the same goes back at once. So does what was asked for meanwhile.

        A task may run in this thread next, for long: until then, it waits for the server for at most `patience_s`.
        """
        consumer = self._consumer
        if consumer is None or consumer.is_late:
            return
        if not any(slot.is_armed for slot in slots):
            if self._asked is not None:
                consumer.read_answers(self.patience_s)
            return
        self.unsettle()
        for slot in self._waits.end(consumer, slots, self.patience_s):
            try:
                message = self._try(slot.name, slot.read)
            except Exception:
                self._on_connection_lost()
                raise
            if message is not None:
                consumer.give_back(slot.name, [message])

    def _clear_the_way(self) -> None:
        """Make all fetchers of the channel wait for no message, and give back what they have."""
        self.make_way()

    def make_way(self) -> None:
        """Wait for no message, and give back those that are fetched but not delivered."""
        self._end_waits(self._waits.all)
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
            while found := consumer.fetch(name, 1):
                yield name, found[0]

    # -- the end

    def close(self) -> None:
        """Stop waiting for messages, and put undelivered ones back. Never raises."""
        consumer, self._to_ask = self._consumer, None
        try:
            if consumer is not None and not (consumer.is_closed or consumer.is_unanswered):
                consumer.read_answers()
                if not consumer.is_late:
                    self.make_way()
                if consumer.is_late:  # whoever closes waits once for a server that does not answer
                    consumer.give_up(exceptions.TimeoutError("Redis does not answer"))
        except (LeaseLost, OSError, exceptions.RedisError):
            pass
        except Exception:  # Celery swallows errors here, and the messages would wait until the worker ends
            logger.exception("Cannot put back undelivered messages yet: they will go back with the delivered ones")
        if consumer is not None and consumer.is_unanswered:
            self._delivery.give_back(consumer)
        if self._waits.armed:
            self._on_connection_lost()
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections."""
        self._settled_until = 0.0
        for slot in self._waits.all:
            self._drop(slot)
        self._to_ask, self._is_closed = None, True
        self._delivery.clear()

    def _drop(self, slot: Slot) -> None:
        self._settled_until = 0.0
        self._waits.drop(self._consumer, slot)
