"""Departures: where messages go when they leave the in-flight list of their consumer, and the commands for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Literal

import redis

from celery_delayq.fetching.held import Held
from celery_delayq.queue import scripts
from celery_delayq.queue.call import Call
from celery_delayq.queue.holds import What, acknowledge
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import MAX_PUT_BACK

#: A command to the server.
Command = Call[Any] | tuple[Any, ...]


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


def commands(
    keys: QueueKeys, *, consumer: str, departures: Mapping[str, Departure], expires_ms: int | None = None
) -> Iterator[tuple[dict[str, Departure], Command]]:
    """Yield what makes messages of one list leave, in this order. A message that is no longer in flight is left alone.

    So a command whose reply is unknown may be repeated. Each 100 consecutive messages to the same place are one atomic
    step.

    Args:
        keys: keys of the list.
        consumer: its id.
        departures: tag -> where a message goes.
        expires_ms: TTL for the broker list, in ms, set if messages go back to it (which may create the list); None if
            it never expires.

    Yields:
        The departures of a command, and the command. If all of them are "nowhere", it replies with how many were in
        flight.
    """
    for to, group in groupby(departures.items(), key=lambda item: item[1].to):
        if to == "nowhere":
            for tag, departure in group:
                yield {tag: departure}, _removal(keys, consumer=consumer, held=departure.held)
            continue
        while some := dict(islice(group, MAX_PUT_BACK)):
            yield (
                some,
                scripts.put_back(
                    keys,
                    consumer=consumer,
                    messages=[(departure.held.message, departure.written) for departure in some.values()],
                    to_front=to == "front",
                    dead=to == "dead",
                    holders=[departure.held.holder for departure in some.values()] if to == "dead" else (),
                    expires_ms=expires_ms,
                ),
            )


def _removal(keys: QueueKeys, *, consumer: str, held: Held) -> Command:
    if held.holder is not None:
        what: What = "start" if held.starts else "done"
        return acknowledge(keys, consumer=consumer, message=held.message, holder=held.holder, what=what)
    return ("LREM", keys.in_flight(consumer), -1, held.message)


def depart(
    client: redis.Redis,
    keys: QueueKeys,
    *,
    consumer: str,
    departures: Mapping[str, Departure],
    expires_ms: int | None = None,
) -> None:
    """Make messages of one list leave, in this order, and wait for that; see `commands`.

    Raises:
        redis.RedisError: the first messages may have left.
    """
    for _, command in commands(keys, consumer=consumer, departures=departures, expires_ms=expires_ms):
        if isinstance(command, Call):
            command.run(client)
        else:
            client.execute_command(*command)
