"""Fetcher: fetches the messages of a channel's queues from one server, as many as the prefetch limit allows.

If there is a backlog, one script call fetches several messages, but not before the pool needs them. The answer comes
while the thread does other things. If there is no backlog, one connection per queue waits on the server (`waits`), and
the watchdog hears of all other lists (`rare_lists`). So an idle worker neither polls nor delays a message.

A wait is no longer wanted if the prefetch limit is reached or the consumer was cancelled. The server is then told to
end it. A message that arrives all the same goes back at once, so that other workers can take it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import CONNECTION_ERRORS, NOT_SERVING, refusals
from celery_delayq.transfer.settings import LONGEST_LEAD_S
from celery_delayq.transport.lists import Lists
from celery_delayq.transport.protocols import Channel, Siblings
from celery_delayq.transport.rounds import Rounds
from celery_delayq.transport.slots import Slot
from celery_delayq.transport.station import Station
from celery_delayq.transport.waits import Waits

logger = getLogger(__name__)

#: How long all lists count as waited for, if nothing happens, in seconds.
_SETTLED_S = 1.0

#: Messages that a worker fetches at once if there is no prefetch limit; others fetch what they ask for.
_UNLIMITED = 20

#: How long to fetch nothing for a busy pool, in seconds.
PATIENCE_S = 0.1


class Fetcher:
    """Fetches for one channel from one server. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
        siblings: the fetchers of the channel.
        server: as `Stations` names it.

    Attributes:
        rounds: what it asks.
        is_starved: whether the last fetch ended because there was no credit.
        empty_since: when its server was first found empty; None if it had messages since. For the siblings (monotonic).
        full_until: when its server may have a connection again. For the siblings (monotonic).
    """

    def __init__(self, channel: Channel, siblings: Siblings, server: str) -> None:
        self._channel = channel
        self._siblings = siblings
        self.server = server
        self._station: Station | None = None
        self._delivery = siblings.delivery
        self._lists = Lists(channel, self._queues, siblings.is_elsewhere)
        self._waits = Waits(channel.connection.cycle, self._lists, self)
        #: Fetch nothing for a busy pool until this time (monotonic); infinite while the pool is not busy.
        self._patient_until = math.inf
        #: All lists are waited for until this time (monotonic), so there is nothing to fetch.
        self._settled_until = 0.0
        #: Whether the watchdog has heard of a message since the last round began.
        self._has_news = False
        self.rounds = Rounds(channel.connection.cycle, self._lists, self._waits, self)
        self._is_closed = False
        self.is_starved = False
        self.empty_since: float | None = None
        self.full_until = 0.0

    @property
    def consumer(self) -> Consumer | None:
        """The consumer at its server; None before the first fetch."""
        return None if self._station is None else self._station.consumer

    def _begin(self) -> Station:
        if self._station is None:
            self._station = self._siblings.station(self.server)
        return self._station

    # -- which queues

    def _queues(self) -> list[str]:
        """Return the queues to fetch from, each once."""
        return self._siblings.queues_at(self.server)

    def on_queues_changed(self) -> None:
        """Follow a change of `channel.task_queues`: hand back the messages of queues that are no longer consumed."""
        self._settled_until = 0.0
        self.rounds.cancel()
        queues = self._queues()
        self._lists.follow()
        gone = [slot for slot in self._waits.all if slot.queue not in queues]
        try:
            self._end_waits(gone)
        finally:  # even if the server has no connection left
            self._waits.drop_ended(gone)
            self._delivery.give_back(self, lambda queue: queue not in queues)
        if self.consumer is not None:
            consumed = self._siblings.consumed_at(self.server)
            for name in self.consumer.names - {name for _, name in self._lists.of(consumed)}:
                if not self._waits.has(name) and not self.rounds.asks(name):
                    self.consumer.part(name)

    def join_paused(self) -> None:
        """Have leases on paused lists, too: whoever would fetch from them recovers what others leave there."""
        consumed = self._siblings.consumed_at(self.server)
        for _, name in self._lists.of([queue for queue in consumed if not self.is_consumed(queue)]):
            self._lists.attempt(name, self._begin().consumer.join, name)

    def part(self, queue: str, name: str) -> None:
        """Stop consuming a list, unless its queue is only paused."""
        if self.consumer is not None and queue not in self._siblings.consumed_at(self.server):
            self.consumer.part(name)

    def tidy(self) -> None:
        """Handle the replies to acknowledgements: perhaps nothing is fetched. They also reveal a lost connection.

        Then end the leases on lists that are no longer fetched from, once none of their messages is held. Call it about
        once a second.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        consumer = self.consumer
        if consumer is not None:
            consumer.conversation.read()
        self.rounds.check(consumer)
        if consumer is None or consumer.lists.keys() == consumer.names or consumer.conversation.is_late:
            return
        try:
            consumer.end_leases()
        except exceptions.ResponseError as exc:
            if isinstance(exc, NOT_SERVING) or not refusals.note(exc, logger):
                raise

    @property
    def is_consuming(self) -> bool:
        """Whether it waits for messages, or has undelivered ones."""
        return bool(self._waits or self.rounds.is_asking or self._delivery.has(self))

    # -- fetching

    def credit(self) -> int:
        """Return how many messages may be fetched now, as the prefetch limit allows.

        Messages that came before they are due take room, see `ahead`.
        """
        qos, connection = self._channel.qos, self._channel.connection
        if not qos.can_consume() or self._delivery.is_isolated:
            return 0
        room = connection.ahead.room(connection.program.most_ahead())
        if not room:
            connection.cycle.wake_in(LONGEST_LEAD_S)  # a task that is due need not begin: it may be rate-limited
        # Celery's worker_disable_prefetch sets it: one by one.
        limit = 1 if "can_consume" in vars(qos) else qos.can_consume_max_estimate()
        if limit is None:
            limit = _UNLIMITED if connection.fetches_ahead else 1
        return max(0, int(min(max(limit, 1), room)) - self._siblings.on_the_way)

    def _can_wait(self, credit: int) -> bool:
        """Return whether the fetch can wait: the pool is busy, and has more tasks waiting than a fetch could add.

        With early acknowledgement, each task that begins gives credit for one message. Fetching them one by one would
        cost a round trip each. No process is idle while the fetch waits, and whenever a process ends a task, there is
        another look. If tasks take long, the prefetch limit is still used up, a moment later.
        """
        if not self._channel.qos.prefetch_count or self._channel.connection.program.tasks_waiting() <= credit:
            self._patient_until = math.inf
            return False
        now = time.monotonic()
        if self._patient_until == math.inf:
            self._patient_until = now + PATIENCE_S
        if now < self._patient_until:
            self._channel.connection.cycle.wake_in(self._patient_until - now)
            return True
        self._patient_until = math.inf
        return False

    def send_acks(self, *, is_busy: bool) -> bool:
        """Send the acknowledgements that wait, unless more will follow soon; see `Conversation.flush`."""
        if self.consumer is None:
            return False
        is_patient = time.monotonic() < self._patient_until < math.inf
        return self.consumer.conversation.flush(may_wait=is_busy or is_patient)

    def ask(self) -> None:
        """Ask for messages. What comes is delivered later, see `deliver`.

        Raises:
            LeaseLost: others have given the consumer up; the caller has to reconnect.
            redis.ConnectionError: the connection is lost.
        """
        if self._delivery.has_next:
            return
        was_asking = self.rounds.is_asking
        if was_asking and self.consumer is not None:
            self.consumer.conversation.read()  # perhaps the answer has come while a task ran, or is overdue
        self.rounds.check(self.consumer)
        if self.consumer is not None:
            self.consumer.check()  # first: messages that others have taken over must not use up credit
        if was_asking and (self.rounds.is_asking or self._delivery.has_next or self.rounds.is_empty):
            return
        credit = self.credit()
        self.is_starved = credit == 0
        if not credit or self._can_wait(credit):
            self.rounds.cancel()
            self.end_waits()
        elif time.monotonic() >= self._settled_until:
            self._has_news = False
            self.rounds.go_on(self._begin())

    def take(self, queue: str, name: str, messages: list[bytes]) -> None:
        """Take messages that have come. Those that are not wanted any more go back."""
        consumer = self.consumer
        assert consumer is not None
        if self._is_closed or not self.is_consumed(queue) or self._delivery.is_isolated:
            consumer.give_back(name, messages)
            return
        credit = self.credit()
        self._lists.rotate(queue)
        self._delivery.add(self, queue, name, messages)
        self._siblings.on_found(self)
        if credit <= len(messages):  # while these tasks run, no further message may wait here
            self._siblings.end_waits(self)

    @property
    def owes_for_s(self) -> float:
        """For how long its server owes an answer, in seconds; 0 if it owes none."""
        return 0.0 if self.consumer is None else self.consumer.conversation.owes_for_s

    @property
    def has_timed_out(self) -> bool:
        """Whether its server has not answered in time, so that whoever connects to it again may wait, too."""
        return self.consumer is not None and self.consumer.conversation.has_timed_out

    def wait(self) -> None:
        """Wait on the server for messages in the lists that were found empty."""
        if self.is_sparing:
            self.rounds.cancel()
            if self._channel.connection.is_full(self.server):  # a connection that is idle by now may keep them out
                self.spare_connections()
            self._settled_until = time.monotonic() + _SETTLED_S
            self._channel.connection.cycle.wake_in(_SETTLED_S)
        elif self._station is None or not self.credit():
            self.rounds.cancel()
        else:
            self.rounds.wait(self._station)
            if not self._lists.are_refused:
                self._settled_until = time.monotonic() + _SETTLED_S
                if self._has_news:
                    self._settled_until = 0.0
                    self._channel.connection.cycle.wake()

    def maxclients(self) -> str:
        """Return the server's limit of connections, as a part of a sentence; empty if it does not tell."""
        if self.consumer is not None:
            with suppress(exceptions.RedisError):
                limit = self.consumer.client.info("clients").get("maxclients")
                return f" of {limit}" if limit else ""
        return ""

    @property
    def is_sparing(self) -> bool:
        """Whether it does without connections that wait."""
        return self._waits.is_sparing

    def spare_connections(self) -> None:
        """Do without connections that wait, for a while: the server has none left for leases and transfers."""
        self._waits.spare(self._siblings.patience_s)

    def unsettle(self) -> None:
        """Look at all lists again at the next fetch. Safe in any thread."""
        self._has_news = True  # first: `wait` looks after it has settled
        self._settled_until = 0.0

    def on_readable(self, slot: Slot) -> None:
        """Take the message that a slot has waited for, see `Waits.receive`.

        Raises:
            LeaseLost: others have given the consumer up.
            redis.ConnectionError: the connection to a single server is lost.
        """
        try:
            self._waits.receive(slot)
        except LeaseLost:
            raise
        except CONNECTION_ERRORS as exc:
            self._siblings.lose(self, exc)

    def is_consumed(self, queue: str) -> bool:
        """Return whether a queue is fetched from: it is consumed, and not paused."""
        return queue in self._queues()

    def may_wait(self) -> bool:
        """Return whether one more message may come: there is credit, and none is on its way."""
        return not self.rounds.is_asking and self.credit() > 0

    # -- not waiting any more

    def _end_waits(self, slots: Collection[Slot]) -> None:
        """End waits; a message that arrives all the same goes back at once. So does what was asked for meanwhile.

        A task may run in this thread next, for long: until then, it waits for the server for at most `patience_s`.
        """
        can_end = any(slot.can_end for slot in slots)
        if not (can_end or self.rounds.is_asking) or self.consumer is None or self.consumer.conversation.is_late:
            return
        if can_end:
            self._waits.end(slots, self._siblings.patience_s)
        else:
            self.consumer.conversation.read_answers(self._siblings.patience_s)

    def end_waits(self) -> None:
        """Wait for no message."""
        self._end_waits(self._waits.all)

    def make_way(self) -> None:
        """Wait for no message, and give back those that are fetched but not delivered."""
        try:
            self.end_waits()
        finally:
            self._delivery.give_back(self)

    # -- basic_get

    def get(self, queue: str) -> Any:
        """Return one message of a queue as a kombu message, even if others consume the queue; None if it is empty."""
        consumer = self._begin().consumer
        consumer.check()
        if not self._channel.connection.cycle.is_consuming:
            consumer.recover_lost()
        return self._delivery.first_message(consumer, self._messages(consumer, queue))

    def _messages(self, consumer: Consumer, queue: str) -> Iterator[tuple[str, bytes]]:
        """Yield messages of a queue, one by one. Messages that were already fetched for its consumer come first."""
        yield from self._delivery.take(self, queue)
        for _, name in self._lists.of([queue]):
            if name not in consumer.lists:
                consumer.join(name)
            while found := consumer.fetch(name, 1):
                yield name, found[0]

    # -- the end

    def close(self) -> None:
        """Stop waiting for messages, and put undelivered ones back. Never raises."""
        consumer = self.consumer
        self.rounds.cancel()
        try:
            if consumer is not None and not (consumer.is_closed or consumer.is_unanswered):
                has_answered = consumer.conversation.read_answers()
                if has_answered:
                    self.make_way()
                if not has_answered or consumer.conversation.is_late:  # whoever closes waits once for such a server
                    consumer.give_up()
        except (LeaseLost, OSError, exceptions.RedisError):
            pass
        except Exception:  # Celery swallows errors here, and the messages would wait until the worker ends
            logger.exception("Cannot put back undelivered messages yet: they will go back with the delivered ones")
        if consumer is not None and consumer.is_unanswered:
            self._delivery.give_back(self)
        if self._waits.are_armed:
            self._waits.abandon()
        self.disconnect()

    def abandon(self) -> None:
        """Fetch nothing any more, without a command to the server. The watchdog puts back what was not delivered."""
        self._waits.abandon()
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections."""
        self._settled_until = 0.0
        for slot in self._waits.all:
            self._waits.drop(slot)
        self.rounds.cancel()
        self._is_closed = True
        self._delivery.clear(self)
