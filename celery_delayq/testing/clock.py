"""Moves time: everything that waits becomes due earlier. The clocks of the machine and the server stay as they are."""

from __future__ import annotations

import math
import struct
import time
from contextlib import suppress
from typing import Any

from celery_delayq.basics.errors import InvalidEta
from celery_delayq.basics.times import to_datetime
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.queue.call import run_each
from celery_delayq.queue.codec import OfferId
from celery_delayq.queue.keys import UNIQUE
from celery_delayq.queue.scripts import amend
from celery_delayq.transport.eta import parse_eta
from celery_delayq.transport.messages import DUE_PROPERTY, decode, encode, is_task


def now_ms() -> int:
    """Return the time of this process, unix time in ms, rounded up as due times are.

    It is that of `time.time`, so that a test may set it with time-machine or freezegun.
    """
    return math.ceil(time.time() * 1000)


def move_on(lists: BrokerLists, by_ms: int) -> None:
    """Let an amount of time pass for all tasks that wait, and for the turns of throttled keys.

    Each task gets an earlier due time and eta, and expires earlier. Entries of other programs stay as they are.

    Args:
        lists: the broker lists.
        by_ms: how much time, in ms.

    Raises:
        redis.RedisError: the server is away or refuses a command.
    """
    if by_ms <= 0:
        return
    for broker_list in lists.waiting()[0]:
        queue = lists.delayed_queue(broker_list)
        # In due order, so that tasks which are due at the same time keep their order.
        calls = [
            amend(queue.keys, due_ms=entry.score - by_ms, messages=[(entry.raw, _earlier(entry.payload, by_ms))])
            for page in queue.pages(limit=1000)
            for entry in page
            if OfferId.is_one(entry.id)
        ]
        for reply in run_each(lists.client, calls):
            if isinstance(reply, Exception):
                raise reply
    _move_turns(lists.client, by_ms)


def _earlier(payload: bytes, by_ms: int) -> bytes:
    message = decode(payload)
    if message is None or not is_task(message):
        return payload
    for name in ("eta", "expires"):
        if message["headers"].get(name) is not None:
            with suppress(InvalidEta):
                when_ms = parse_eta(message["headers"][name], message["headers"]["task"])
                message["headers"][name] = to_datetime(when_ms - by_ms).isoformat()
    if DUE_PROPERTY in message["properties"]:
        message["properties"][DUE_PROPERTY] -= by_ms
    return encode(message)


def _move_turns(client: Any, by_ms: int) -> None:
    """Let turns come earlier; `queue/lua/lib/next_turn.lua` says how they are written."""
    for key in client.scan_iter(f"{UNIQUE}:*", _type="STRING"):
        record = client.get(key) or b""
        times = struct.unpack(f">{len(record) // 8}q", record)
        left_ms = client.pttl(key) - by_ms
        if left_ms <= 0:
            client.delete(key)
        else:
            client.set(key, struct.pack(f">{len(times)}q", *(when - by_ms * 1000 for when in times)), px=left_ms)
