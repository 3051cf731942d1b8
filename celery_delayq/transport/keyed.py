"""Messages that hold a unique key, or take turns by a throttled one: what they carry, and how they are stored."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.times import to_datetime
from celery_delayq.options.throttle import Throttle
from celery_delayq.options.unique import For, OnConflict, Unique
from celery_delayq.queue import scripts
from celery_delayq.queue.call import Attempt
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import entry_of
from celery_delayq.queue.holds import MAX_HOLDS, Claim, Conflict, Holder, Offered, Pace, Until, hold
from celery_delayq.queue.keys import without_priority
from celery_delayq.transport.messages import DUE_PROPERTY, decode, encode, with_eta

#: Property of a message that holds a unique key: its key, and `Unique.for_`, `ttl` and `on_conflict`.
UNIQUE_PROPERTY = "delayq_unique"

#: Property of a message that takes turns: its key, and `Throttle.rate`.
THROTTLE_PROPERTY = "delayq_throttle"

_UNTIL: dict[For, Until] = {"waiting": "due", "until_start": "start", "until_done": "done"}
_CONFLICT: dict[OnConflict, Conflict] = {"ignore": "keep", "raise": "keep", "replace": "replace", "extend": "extend"}


class Claiming(dict[str, Any]):
    """The property of a message before it is stored. It also says what the message claims, and then what became of it.

    It is a dict, so that it goes through Celery and kombu like any property.

    Attributes:
        claim: what the message claims.
        offered: what became of the message; None if no channel of ours has stored it.
    """

    def __init__(self, key: str, unique: Unique) -> None:
        super().__init__(key=key, **{"for": unique.for_}, ttl=unique.lasts_s, on_conflict=unique.on_conflict)
        until = _UNTIL[unique.for_] if unique.period is None else "period"
        self.claim = Claim(key, until, round(unique.lasts_s * 1000), _CONFLICT[unique.on_conflict])
        self.offered: Offered | None = None


def claiming_of(message: Mapping[str, Any]) -> Claiming | None:
    """Return the property of a message that claims a unique key; None if it claims none."""
    found = message["properties"].get(UNIQUE_PROPERTY)
    return found if isinstance(found, Claiming) else None


def as_stored(message: Mapping[str, Any], claiming: Claiming | None) -> Mapping[str, Any]:
    """Return a message as it is stored: without a key that it holds for a period, which nobody gives up with it."""
    if claiming is None or claiming.claim.until != "period":
        return message
    properties = {name: value for name, value in message["properties"].items() if name != UNIQUE_PROPERTY}
    return {**message, "properties": properties}


def throttle_of(found: Any) -> Throttle | None:
    """Return what a message's property says; None if there is none, or somebody else wrote it."""
    if not isinstance(found, dict) or not found.get("key"):
        return None
    try:
        return Throttle(found["rate"], key=found["key"])
    except (KeyError, TypeError, ValueError):
        return None


def pace_of(message: Mapping[str, Any]) -> Pace | None:
    """Return the throttled key of a message that is published; None if it takes no turns."""
    throttle = throttle_of(message["properties"].get(THROTTLE_PROPERTY))
    if throttle is None or throttle.key is None:
        return None
    return Pace(throttle.key, round(throttle.interval_s * 1_000_000))


def unique_of(found: Any) -> Unique | None:
    """Return what a message's property says; None if there is none, or somebody else wrote it."""
    if not isinstance(found, dict) or not found.get("key"):
        return None
    try:
        return Unique(key=found["key"], for_=found["for"], ttl=found["ttl"], on_conflict=found["on_conflict"])
    except (KeyError, TypeError, ValueError):
        return None


def holder_of(message: Mapping[str, Any]) -> Holder | None:
    """Return the holder that a message stands for; None if it holds no unique key, or somebody else wrote it."""
    found = message["properties"].get(UNIQUE_PROPERTY)
    headers = message.get("headers")
    if not isinstance(found, dict) or not isinstance(headers, dict):
        return None
    key, task_id = found.get("key"), headers.get("id")
    if not isinstance(key, str) or not isinstance(task_id, str):
        return None
    return Holder.of(key, task_id, _turn_of(headers))


def _turn_of(headers: Mapping[str, Any]) -> int:
    """Return a number that differs between a task, its retry, and what it was replaced by: they have one id."""
    retries, nesting = headers.get("retries"), headers.get("replaced_task_nesting")
    return ((retries if isinstance(retries, int) else 0) + (nesting if isinstance(nesting, int) else 0)) % 256


def check_protocol(message: Mapping[str, Any], claiming: Claiming | None) -> None:
    """Refuse a message of Celery's protocol 1 that shall hold a key, or take a turn: it has no place for that.

    Raises:
        ConfigurationError: it is one.
    """
    if "id" not in message["headers"]:
        option = "throttle" if claiming is None else "unique"
        raise ConfigurationError(f"the option {option} of a task needs task_protocol = 2, not 1")


def around_its_turn(message: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return what a message with a turn is before and behind its due time, which the server writes between them."""
    unlikely = random.randint(10**17, 10**18)  # it occurs nowhere else
    properties = {**message["properties"], DUE_PROPERTY: unlikely}
    before, _, behind = encode({**message, "properties": properties}).partition(str(unlikely).encode())
    return before, behind


def put_keyed(
    channel: Any,
    broker_list: str,
    message: Mapping[str, Any],
    *,
    claiming: Claiming | None,
    pace: Pace | None,
    due_ms: int | None,
    attempt: Attempt,
) -> None:
    """Store a message that claims a unique key, unless another one holds that; or one that takes turns; or both.

    Args:
        channel: a channel of our transport.
        broker_list: the full name of the message's list.
        message: the message.
        claiming: what it claims. Afterwards, this says what became of it.
        pace: its throttled key.
        due_ms: when it is due, unix time in ms; None if it is due now. It may get a later turn.
        attempt: the same one if it is published again because the reply was lost.

    Raises:
        ValueError: a task of this id waits already, with another key or with none.
    """
    headers, message = message["headers"], as_stored(message, claiming)
    payload, tail = (encode(message), b"") if pace is None else around_its_turn(message)
    queue, eta = channel.delayed_queue(broker_list), None if due_ms is None else to_datetime(due_ms)
    if claiming is None:
        if pace is not None:
            queue.offer_throttled(payload, pace, eta=eta, message_id=headers["id"], tail=tail, attempt=attempt)
        return
    while True:
        offered = queue.offer_unique(
            payload,
            claiming.claim,
            eta=eta,
            message_id=headers["id"],
            turn=_turn_of(headers),
            pace=pace,
            tail=tail,
            attempt=attempt,
        )
        if offered.outcome != "extend":
            break
        entry = entry_of(offered.entry, due_ms)
        if entry is not None and due_ms is not None:
            later = with_eta(entry.payload, headers["eta"], due_ms)
            channel.delayed_queue(offered.broker_list).amend(entry, later, eta=eta)
    if offered.outcome == "repeated":
        raise ValueError(
            f"a task with the id {headers['id']!r} already waits in {without_priority(broker_list)!r}, with another "
            f"unique key than {claiming.claim.key!r}, or with none: give each task its own id"
        )
    claiming.offered = offered


def purge(queue: DelayedQueue) -> int:
    """Remove the messages that are in a broker list now, a slice at a time; their tasks give up their unique keys.

    A slice is removed, then its keys are given up: if the process is killed in between, they end with their `ttl`.

    Returns:
        How many messages were removed.

    Raises:
        redis.RedisError: the server is away, or refuses.
    """
    left, purged = int(queue.client.execute_command("LLEN", queue.name)), 0
    while left > purged:
        limit = min(left - purged, scripts.MAX_FETCH)
        removed, marked = scripts.purge(queue.keys, limit=limit, mark=UNIQUE_PROPERTY.encode()).run(queue.client)
        found = (decode(raw) for raw in marked)
        holders = [one for message in found if message and (one := holder_of(message))]
        for at in range(0, len(holders), MAX_HOLDS):
            hold(queue.keys, holders=holders[at : at + MAX_HOLDS], what="done").run(queue.client)
        if not removed:  # consumers have taken the rest
            break
        purged += removed
    return purged
