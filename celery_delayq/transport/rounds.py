"""Rounds: ask one list after the other for messages, until one has some."""

from __future__ import annotations

import time
import weakref
from collections import deque
from functools import partial
from typing import NamedTuple

from redis import exceptions

from celery_delayq.basics.weak import call_of
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.conversation import LATE_ANSWER_S, Found
from celery_delayq.queue.connections import LOST
from celery_delayq.transport.lists import Lists
from celery_delayq.transport.protocols import Cycle, Taker
from celery_delayq.transport.station import Station
from celery_delayq.transport.waits import Waits


class _Question(NamedTuple):
    """A question to a list: for how many messages, and since when (monotonic)."""

    name: str
    limit: int
    at: float


class Rounds:
    """Those of one fetcher. They belong to the consuming thread.

    Args:
        cycle: is woken if a round cannot go on.
        lists: which there are.
        waits: a list with a connection that waits is not asked.
        taker: takes the messages.
    """

    def __init__(self, cycle: Cycle, lists: Lists, waits: Waits, taker: Taker) -> None:
        self._cycle = cycle
        self._lists = lists
        self._waits = waits
        self._taker = taker
        #: The lists that this round still has to ask, and those that it has found empty. None: there is no round.
        self._to_ask: deque[tuple[str, str]] | None = None
        self._idle: list[tuple[str, str]] = []
        self._question: _Question | None = None
        self._station: Station | None = None
        #: Whether a list has said that the consumer has no lease; and what a list has said that ends the connection.
        self._has_no_lease = False
        self._failure = ""

    @property
    def is_asking(self) -> bool:
        """Whether an answer is awaited."""
        return self._question is not None

    @property
    def on_the_way(self) -> int:
        """How many messages may be on their way. Not if their answer is late: then others may have the credit."""
        question = self._question
        return 0 if question is None or time.monotonic() > question.at + LATE_ANSWER_S else question.limit

    @property
    def is_empty(self) -> bool:
        """Whether this round has found no message in any list."""
        return self._to_ask is not None and not self._to_ask and self._question is None

    def asks(self, name: str) -> bool:
        """Return whether a list has been asked, and has not answered yet."""
        return self._question is not None and self._question.name == name

    def check(self, consumer: Consumer | None) -> None:
        """Make sure that no answer was lost.

        Raises:
            LeaseLost: others have given the consumer up.
            redis.ConnectionError: the connection is lost.
        """
        if self._failure:
            raise exceptions.ConnectionError(self._failure)
        lost = "" if consumer is None else consumer.conversation.lost
        if lost:
            raise exceptions.ConnectionError(f"a reply that may have had messages was lost: {lost}")
        if consumer is not None and self._has_no_lease:
            consumer.renew()
            self._has_no_lease = False

    def cancel(self) -> None:
        """Ask no more lists in this round. A message that is on its way is taken all the same."""
        self._to_ask = None

    def go_on(self, station: Station) -> None:
        """Ask the next list of this round, or the first one of a new round.

        Raises:
            redis.ConnectionError: the server is away.
        """
        self._station = station
        if not self._to_ask:
            self._begin(station)
        self._ask_next(station)

    def _begin(self, station: Station) -> None:
        self._idle = []
        consumer, rare_lists = station.consumer, station.rare_lists
        # Join all lists, even if the first has messages: a consumer sees gone ones only on lists that it has joined.
        # With 100 queues, to call `join` for those that it has joined would take a tenth of the time for a message.
        lists = [
            (queue, name)
            for queue, name in self._lists.in_order()
            if (name in consumer.names and name in consumer.lists) or self._lists.attempt(name, _join, consumer, name)
        ]
        rare = {name for queue, name in lists if self._is_rare(station, queue, name)}
        if rare:
            rare_lists.wait(rare)
        if lists:  # on a cluster, the last queue may have moved to another node just now
            self._to_ask = deque(it for it in lists if it[1] not in rare or rare_lists.may_have_messages(it[1]))

    def _ask_next(self, station: Station) -> None:
        """Ask the next list, if the server would not have told of its messages."""
        while self._to_ask:
            queue, name = self._to_ask.popleft()
            if self._waits.is_armed(name):
                continue
            credit = self._taker.credit()
            if not credit or not self._taker.is_consumed(queue):
                self._to_ask = None
                return
            limit = self._lists.share(credit)
            self._question = _Question(name, limit, time.monotonic())
            on_found = partial(call_of, weakref.ref(self), "on_found", queue, name)
            try:
                if self._lists.attempt(name, _ask, station.consumer, name, limit, on_found):
                    return
            except BaseException:
                self._question = None
                raise
            self._question = None

    def on_found(self, queue: str, name: str, found: Found) -> None:
        """Handle the answer of a list. Whatever has happened since it was asked, its messages are not lost."""
        station = self._station
        assert station is not None
        self._question = None
        if not self._taker.is_consumed(queue) and not self._waits.has(name):
            self._taker.part(queue, name)
        if found is None or isinstance(found, BaseException):
            self._on_no_answer(name, found)
        else:
            self._lists.accepted(name)
            if found:
                station.rare_lists.is_not_empty(name)
                self._to_ask = None
                try:
                    self._taker.take(queue, name, found)
                except LOST as exc:  # a connection that waits, not the one that has answered
                    self._fails(exc)
                return
            self._idle.append((queue, name))
            station.rare_lists.is_empty(name)
        if self._to_ask:
            try:
                self._ask_next(station)
            except exceptions.RedisError:  # the next round meets it, too
                self._to_ask = None

    def _on_no_answer(self, name: str, error: BaseException | None) -> None:
        """Go on with the other lists if the server refuses one. Otherwise, the next `check` says what is wrong."""
        try:
            if isinstance(error, exceptions.ResponseError):
                self._lists.refused(name, error)
                return
        except exceptions.ConnectionError as exc:
            self._fails(exc)
            return
        self._has_no_lease |= error is None
        self._to_ask = None
        self._cycle.wake()

    def _fails(self, exc: Exception) -> None:
        """Let the next `check` say that the connection is lost."""
        self._failure = str(exc) or type(exc).__name__
        self._to_ask = None
        self._cycle.wake()

    def wait(self, station: Station) -> None:
        """End this round: let the server say when there is a message in one of the lists that were found empty.

        Raises:
            redis.ConnectionError: the server is away.
        """
        idle, self._idle, self._to_ask = self._idle, [], None
        rare: list[str] = []
        for queue, name in idle:
            if self._is_rare(station, queue, name):
                rare.append(name)
            else:
                self._lists.attempt(name, self._waits.arm, queue, name)
        if rare:
            station.rare_lists.wait(rare)

    def _is_rare(self, station: Station, queue: str, name: str) -> bool:
        """Return whether a list takes no connection of its own: it is not the first of its queue, nor is it busy.

        With many queues, the first ones do not take any either, nor do many busy ones, unless it is told of in vain.
        """
        rare_lists = station.rare_lists
        if self._waits.has(name) or not rare_lists.are_allowed or rare_lists.is_told_in_vain(name):
            return False
        if self._lists.is_first(queue, name) and not self._lists.are_of_many_queues:
            return False
        return self._waits.are_many or not rare_lists.is_busy(name)


def _join(consumer: Consumer, name: str) -> bool:
    consumer.join(name)
    return True


def _ask(consumer: Consumer, name: str, limit: int, on_found: partial[object]) -> bool:
    consumer.ask(name, limit, on_found)
    return True
