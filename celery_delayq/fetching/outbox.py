"""Outbox: tells the server what has become of the messages of one consumer, from any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby, islice
from logging import getLogger
from threading import Lock
from typing import Any, Literal, NamedTuple, cast

import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.basics.text import plural
from celery_delayq.fetching.conversation import Command, Conversation, Urgency
from celery_delayq.fetching.held import Held
from celery_delayq.fetching.lease import Leases
from celery_delayq.queue import scripts
from celery_delayq.queue.call import Call, unwrapped
from celery_delayq.queue.connections import CONNECTION_ERRORS, is_elsewhere, refusals
from celery_delayq.queue.holds import What, acknowledge
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import MAX_PUT_BACK

logger = getLogger(__name__)


class Departure(NamedTuple):
    """Where a message goes when it leaves the in-flight list.

    Attributes:
        held: the message.
        to: "nowhere" if it is acknowledged; the "front" or the "back" of its broker list; or "dead" for a dead letter.
        written: the bytes to store there: a message, or the record of a dead letter.
    """

    held: Held
    to: Literal["nowhere", "front", "back", "dead"]
    written: bytes = b""


class Outbox:
    """Makes messages leave the in-flight lists of one consumer.

    A departure is sent on the connection that fetches, and nobody waits for the reply. It is owed if the server refused
    it, or may not have received it; the watchdog settles it. Any thread may use the rest, without a lock: each use of a
    dict is one operation, which is atomic with the GIL and without it.

    Args:
        consumer: its id.
        leases: of the consumer.
        held: tag -> message that the consumer holds; other threads may change it.
        put_back: rewrites a message for redelivery.
        expires_ms: list -> TTL of a list that messages go back to, in ms. Only lists that expire are in it.
        conversation: sends.
        on_acknowledged: called with the tag of each acknowledgement, and whether its message was in flight.
    """

    def __init__(
        self,
        consumer: str,
        leases: Leases,
        held: Mapping[str, Held],
        put_back: Callable[[bytes], bytes],
        expires_ms: Mapping[str, int],
        conversation: Conversation,
        on_acknowledged: Callable[[str, bool], object],
    ) -> None:
        self._consumer = consumer
        self._leases = leases
        self._held = held
        self._put_back = put_back
        self._expires_ms = expires_ms
        self._conversation = conversation
        conversation.on_closed = self._on_closed
        self._on_acknowledged = on_acknowledged
        #: Tag -> departure without a reply; the same for those whose replies were lost with the connection.
        self._under_way: dict[str, Departure] = {}
        self._lost: dict[str, Departure] = {}
        #: Tag -> departure that the server may not know about.
        self.owed: dict[str, Departure] = {}
        #: Whoever settles has it, and nobody waits for it: of two messages with the same bytes, two would remove both.
        self._settling = Lock()
        #: Called when something is owed; the watchdog sets it.
        self.on_owed: Callable[[], object] = bool

    def is_under_way(self, tag: str) -> bool:
        """Return whether the reply to a departure is missing."""
        return tag in self._under_way

    def expect(self, departures: Mapping[str, Departure]) -> None:
        """Record that messages are about to leave: call `leave` next."""
        self._under_way.update(departures)

    def leave(self, departures: Mapping[str, Departure], urgency: Urgency = "now") -> None:
        """Make messages leave, in this order. Never raises for the network or the server; waits for no reply."""
        rest = dict(departures)
        try:
            for _, some, command in self._commands(departures):
                self.expect(some)
                if not self._conversation.say(partial(self._on_reply, some), command, urgency):
                    self._owe(some)
                    self._has_answer(some)
                for tag in some:
                    del rest[tag]
        except BaseException:  # of a signal handler, or a credential provider
            self._owe(rest)
            self._has_answer(rest)
            raise

    def _commands(self, departures: Mapping[str, Departure]) -> Iterator[tuple[str, dict[str, Departure], Command]]:
        """Yield what makes messages leave, in this order. A message that is no longer in flight is left alone.

        So a command whose reply is unknown may be repeated. Each 100 consecutive messages of a list to the same place
        are one atomic step.

        Args:
            departures: tag -> where a message goes.

        Yields:
            The name of a list, the departures of a command, and the command. If all of them are "nowhere", it replies
            with how many were in flight.
        """
        for (name, to), group in groupby(departures.items(), key=lambda item: (item[1].held.name, item[1].to)):
            keys = self._leases.keys_of(name)
            if to == "nowhere":
                for tag, departure in group:
                    yield name, {tag: departure}, self._removal(keys, departure.held)
                continue
            while some := dict(islice(group, MAX_PUT_BACK)):
                yield (
                    name,
                    some,
                    scripts.put_back(
                        keys,
                        consumer=self._consumer,
                        messages=[(departure.held.message, departure.written) for departure in some.values()],
                        to_front=to == "front",
                        dead=to == "dead",
                        holders=[departure.held.holder for departure in some.values()] if to == "dead" else (),
                        expires_ms=self._expires_ms.get(name),
                    ),
                )

    def _removal(self, keys: QueueKeys, held: Held) -> Command:
        if held.holder is not None:
            what: What = "start" if held.starts else "done"
            return acknowledge(keys, consumer=self._consumer, message=held.message, holder=held.holder, what=what)
        return ("LREM", keys.in_flight(self._consumer), -1, held.message)

    def _on_reply(self, some: Mapping[str, Departure], reply: Any) -> None:
        if not isinstance(reply, BaseException):
            for tag, departure in some.items():
                if departure.to == "nowhere":
                    self._on_acknowledged(tag, bool(reply))
        elif self._conversation.is_open:
            self._owe(some, unwrapped(reply) if isinstance(reply, exceptions.ResponseError) else reply)
        else:
            self._lost.update(some)
        self._has_answer(some)  # last: until then, a message is not taken for one that was deleted

    def _has_answer(self, some: Iterable[str]) -> None:
        for tag in some:
            self._under_way.pop(tag, None)

    def _on_closed(self, exc: BaseException) -> None:
        # What had no reply is owed together.
        lost, self._lost = self._lost, {}
        self._owe(lost, exc)

    def _owe(self, departures: Mapping[str, Departure], exc: BaseException | None = None) -> None:
        if not departures:
            return
        self.owed.update(departures)
        if exc is not None and not refusals.note(exc, logger):
            logger.warning(
                "Redis did not confirm that %s left the in-flight list, trying again: %s",
                plural(len(departures), "message"),
                str(exc).rstrip("."),
            )
        self.on_owed()

    # -- with another client

    def settle(self, client: redis.Redis) -> bool:
        """Carry out the departures that are owed. What the server refuses again stays owed.

        So does what belongs to a list whose slot has moved to another node of a cluster, while that node is away.

        Returns:
            False if another thread is just doing so; then nothing was done.

        Raises:
            redis.ConnectionError: the server is away, or is a replica now; the rest stays owed.
        """
        if not self._settling.acquire(blocking=False):
            return False
        try:
            self._settle(client)
        finally:
            self._settling.release()
        return True

    def _settle(self, client: redis.Redis) -> None:
        refused: set[str] = set()
        for name, some, command in self._commands(self.owed.copy()):
            if name in refused:  # the order of its messages remains
                continue
            elsewhere = is_elsewhere(client, self._leases.keys_of(name).queue)
            try:
                _run(client, command)
            except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
                if isinstance(exc, CONNECTION_ERRORS) and not elsewhere:
                    raise
                logger.debug("Redis still does not let messages of %r be acknowledged or put back: %s", name, exc)
                refused.add(name)
                continue
            for tag in some:
                self._on_acknowledged(tag, True)  # first: a message that is held but not owed should be in flight
                self.owed.pop(tag, None)

    def reconcile(self, client: redis.Redis) -> bool:
        """Put every message that is in flight, but neither held nor leaving, back to the front of its list.

        If the server refuses this for one list, or that is elsewhere (see `settle`), the other lists are still handled.
        Do not call this while a fetch is under way: the consumer would lose the messages that are about to arrive.

        Returns:
            Whether nothing is in flight any more.

        Raises:
            redis.ConnectionError: the server is away, or is a replica now; some messages may have been put back.
        """
        empty = True
        for name, keys in list(self._leases.lists.items()):
            # Read the in-flight list last: a message that is acknowledged in between is missing from it.
            leaving = self._under_way.copy() | self._lost.copy() | self.owed.copy()
            mine = {tag: departure.held for tag, departure in leaving.items()} | dict(list(self._held.items()))
            known = Counter(one.message for one in mine.values() if one.name == name)
            elsewhere = is_elsewhere(client, keys.queue)
            try:
                in_flight = _in_flight(client, keys, self._consumer)
                unknown = Counter(in_flight) - known
                back = {}
                for number, message in enumerate(in_flight):
                    if unknown[message] > 0:
                        unknown[message] -= 1
                        back[str(number)] = Departure(Held(name, message), "front", self._put_back(message))
                for _, _, command in self._commands(back):
                    _run(client, command)
                empty = empty and len(back) == len(in_flight)
            except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
                if isinstance(exc, CONNECTION_ERRORS) and not elsewhere:
                    raise
                logger.debug("Cannot put back in-flight messages of %r: %s", name, exc)
                empty = False
        return empty

    def not_in_flight(self, client: redis.Redis, name: str) -> list[str]:
        """Return the tags of the messages of a list that are held, but neither in flight nor leaving."""
        mine = {
            tag: one.message
            for tag, one in list(self._held.items())
            if one.name == name and tag not in self.owed and not self.is_under_way(tag)
        }
        in_flight = Counter(_in_flight(client, self._leases.keys_of(name), self._consumer))
        in_flight.subtract(mine.values())
        return [tag for tag, message in mine.items() if in_flight[message] < 0 and not self.is_under_way(tag)]


def _run(client: redis.Redis, command: Command) -> None:
    if isinstance(command, Call):
        command.run(client)
    else:
        client.execute_command(*command)


def _in_flight(client: redis.Redis, keys: QueueKeys, consumer: str) -> list[bytes]:
    found = client.execute_command("LRANGE", keys.in_flight(consumer), 0, -1, **{NEVER_DECODE: True})
    return cast("list[bytes]", found)
