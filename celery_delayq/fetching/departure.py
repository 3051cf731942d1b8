"""Departures: how messages leave the in-flight list of their consumer, and which of them the server must be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from logging import getLogger
from typing import Any, Literal, cast

import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.basics.text import plural
from celery_delayq.fetching.held import Held
from celery_delayq.queue import scripts
from celery_delayq.queue.call import Call
from celery_delayq.queue.connections import CONNECTION_ERRORS, is_elsewhere, refusals
from celery_delayq.queue.holds import What, acknowledge
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import MAX_PUT_BACK

logger = getLogger(__name__)


@dataclass(frozen=True)
class Departure:
    """Where a message goes when it leaves the in-flight list.

    Attributes:
        held: the message.
        to: "nowhere" if it is acknowledged; the "front" or the "back" of its broker list; or "dead" for a dead letter.
        written: the bytes to store there: a message, or the record of a dead letter.
    """

    held: Held
    to: Literal["nowhere", "front", "back", "dead"]
    written: bytes = b""


class Departures:
    """Moves messages of one consumer out of its in-flight lists.

    A departure is owed if the server refused it or may not have received it. Any thread may use this object, but only
    one may settle what is owed.

    Args:
        consumer: its id.
        keys_of: returns the keys of a broker list.
        expires_ms: list -> `expires_ms` of `depart`.
    """

    def __init__(self, consumer: str, keys_of: Callable[[str], QueueKeys], expires_ms: Mapping[str, int]) -> None:
        self._consumer = consumer
        self._keys_of = keys_of
        self._expires_ms = expires_ms
        #: Tag -> departure.
        self.owed: dict[str, Departure] = {}
        #: Whether the server did not answer in time, nor has settled any since. Whoever asks it would wait as long.
        self.is_unanswered = False

    def owe(self, departures: Mapping[str, Departure], exc: BaseException) -> None:
        """Remember departures that the server may not know about, because its reply is missing or an error."""
        if not departures:
            return
        self.owed.update(departures)
        if isinstance(exc, exceptions.TimeoutError):
            self.is_unanswered = True
        if not refusals.note(exc, logger):
            logger.warning(
                "Redis did not confirm that %s left the in-flight list, trying again: %s",
                plural(len(departures), "message"),
                str(exc).rstrip("."),
            )

    def leave(self, client: redis.Redis, departures: Mapping[str, Departure]) -> int:
        """Make messages leave, in this order. Returns how many left at once.

        Never raises; departures that fail are owed.
        """
        left, rest = 0, dict(departures)
        for name, of_one_list in _by_list(departures.items()):
            try:
                left += self._depart(client, name, of_one_list)
            except exceptions.TimeoutError as exc:
                self.owe(rest, exc)
                return left
            except Exception as exc:
                self.owe(of_one_list, exc)
            for tag in of_one_list:
                del rest[tag]
        return left

    def settle(self, client: redis.Redis) -> list[str]:
        """Carry out the departures that are owed, and return their tags. What the server refuses again stays owed.

        So does what belongs to a list whose slot has moved to another node of a cluster, while that node is away.

        Raises:
            redis.ConnectionError: the server is away, or is a replica now; the rest stays owed.
        """
        settled = []
        for name, of_one_list in _by_list(list(self.owed.items())):
            elsewhere = is_elsewhere(client, self._keys_of(name).queue)
            try:
                self._depart(client, name, of_one_list)
            except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
                if isinstance(exc, CONNECTION_ERRORS) and not elsewhere:
                    raise
                logger.debug(
                    "Redis still does not let %s of %r be acknowledged or put back: %s",
                    plural(len(of_one_list), "message"),
                    name,
                    exc,
                )
                continue
            for tag in of_one_list:
                self.owed.pop(tag, None)
                settled.append(tag)
        if settled:
            self.is_unanswered = False
        return settled

    def put_back_unknown(
        self,
        client: redis.Redis,
        lists: Mapping[str, QueueKeys],
        held: Mapping[str, Held],
        put_back: Callable[[bytes], bytes],
    ) -> bool:
        """Put messages that are in flight, but neither held nor owed, back to the front of their lists.

        If the server refuses this for one list, or that is elsewhere (see `settle`), the other lists are still handled.

        Args:
            client: any client.
            lists: the lists on which the consumer has leases.
            held: tag -> message that is held; other threads may change it.
            put_back: rewrites a message for redelivery.

        Returns:
            Whether nothing is in flight any more.

        Raises:
            redis.ConnectionError: the server is away, or is a replica now; some messages may have been put back.
        """
        empty = True
        for name, keys in list(lists.items()):
            # Read the in-flight list last: a message that is acknowledged in between is missing from it.
            mine = {tag: owed.held for tag, owed in list(self.owed.items())} | dict(list(held.items()))
            known = Counter(one.message for one in mine.values() if one.name == name)
            elsewhere = is_elsewhere(client, keys.queue)
            try:
                in_flight = _in_flight(client, keys, self._consumer)
                unknown = Counter(in_flight) - known
                back = {}
                for number, message in enumerate(in_flight):
                    if unknown[message] > 0:
                        unknown[message] -= 1
                        back[str(number)] = Departure(Held(name, message), "front", put_back(message))
                self._depart(client, name, back)
                empty = empty and len(back) == len(in_flight)
            except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
                if isinstance(exc, CONNECTION_ERRORS) and not elsewhere:
                    raise
                logger.debug("Cannot put back in-flight messages of %r: %s", name, exc)
                empty = False
        return empty

    def not_in_flight(self, client: redis.Redis, name: str, held: Mapping[str, Held]) -> list[str]:
        """Return the tags of the messages of a list that are held, but neither in flight nor owed."""
        mine = {tag: one.message for tag, one in list(held.items()) if one.name == name and tag not in self.owed}
        in_flight = Counter(_in_flight(client, self._keys_of(name), self._consumer))
        in_flight.subtract(mine.values())
        return [tag for tag, message in mine.items() if in_flight[message] < 0]

    def _depart(self, client: redis.Redis, name: str, departures: Mapping[str, Departure]) -> int:
        return depart(
            client,
            self._keys_of(name),
            consumer=self._consumer,
            departures=list(departures.values()),
            expires_ms=self._expires_ms.get(name),
        )


def _by_list(departures: Iterable[tuple[str, Departure]]) -> Iterator[tuple[str, dict[str, Departure]]]:
    """Group consecutive departures of the same list; yield its name and the group."""
    for name, group in groupby(departures, key=lambda item: item[1].held.name):
        yield name, dict(group)


def depart(
    client: redis.Redis,
    keys: QueueKeys,
    *,
    consumer: str,
    departures: Sequence[Departure],
    expires_ms: int | None = None,
) -> int:
    """Make messages of one list leave, in this order. A message that is no longer in flight is left alone.

    So a call whose result is unknown may be repeated. Each 100 consecutive messages to the same place are one atomic
    step.

    Args:
        client: any.
        keys: keys of the list.
        consumer: its id.
        departures: where the messages go.
        expires_ms: TTL for the broker list, in ms, set if messages go back to it (which may create the list); None if
            it never expires.

    Returns:
        How many messages left.

    Raises:
        redis.RedisError: the first messages may have left.
    """
    left = 0
    for to, group in groupby(departures, key=lambda departure: departure.to):
        row = list(group)
        if to == "nowhere":
            left += sum(_remove(client, keys, consumer=consumer, held=departure.held) for departure in row)
            continue
        for at in range(0, len(row), MAX_PUT_BACK):
            some = row[at : at + MAX_PUT_BACK]
            left += scripts.put_back(
                keys,
                consumer=consumer,
                messages=[(departure.held.message, departure.written) for departure in some],
                to_front=to == "front",
                dead=to == "dead",
                holders=[departure.held.holder for departure in some] if to == "dead" else (),
            ).run(client)
        if to != "dead" and expires_ms is not None:
            client.pexpire(keys.queue, expires_ms)
    return left


def removal(keys: QueueKeys, *, consumer: str, held: Held) -> Call[Any] | tuple[Any, ...]:
    """Return what removes a message from the in-flight list; the reply is 0 if it was not there."""
    if held.holder is not None:
        what: What = "start" if held.starts else "done"
        return acknowledge(keys, consumer=consumer, message=held.message, holder=held.holder, what=what)
    return ("LREM", keys.in_flight(consumer), -1, held.message)


def _remove(client: redis.Redis, keys: QueueKeys, *, consumer: str, held: Held) -> int:
    what = removal(keys, consumer=consumer, held=held)
    return int(what.run(client) if isinstance(what, Call) else client.execute_command(*what))


def _in_flight(client: redis.Redis, keys: QueueKeys, consumer: str) -> list[bytes]:
    found = client.execute_command("LRANGE", keys.in_flight(consumer), 0, -1, **{NEVER_DECODE: True})
    return cast("list[bytes]", found)
