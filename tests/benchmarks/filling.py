"""Filling a delayed queue with many messages, quickly and always in the same way."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from celery_delayq import DelayedQueue
from celery_delayq.queue.call import Call, Script, script_of
from tests.benchmarks.scale import SEED

#: Size of a payload in bytes, that of a small Celery message.
PAYLOAD_BYTES = 600

#: How due times are spread: at random, in the order of the offers, or not at all.
RANDOM, ORDERED, INSTANT = "random", "ordered", "instant"

_A_CALL = 1_000

#: With so many bytes each payload begins: its message key.
_KEY_BYTES = 16


@cache
def _fill() -> Script:
    return script_of("fill", Path(__file__).with_name("fill.lua").read_text())


class Filler:
    """Fills a delayed queue, again and again if need be; no two messages have the same id.

    Args:
        queue: the delayed queue.
        first_due_ms: the earliest due time, unix time in ms.
        span_ms: length of the time over which they are spread.
        order: `RANDOM`, `ORDERED` or `INSTANT`.
        payload_bytes: size of each payload.
    """

    def __init__(
        self,
        queue: DelayedQueue,
        *,
        first_due_ms: int,
        span_ms: int,
        order: str = RANDOM,
        payload_bytes: int = PAYLOAD_BYTES,
    ) -> None:
        self.queue = queue
        self._first_due_ms = first_due_ms
        self._span_ms = span_ms
        self._order = order
        self._payload = random.Random(SEED).randbytes(payload_bytes)
        self._offered = 0

    def make_instant(self) -> None:
        """Make all that waits due at one instant, in 1970, and what is offered from here on, too."""
        key = self.queue.keys.timeout_set
        self.queue.client.zunionstore(key, {key: 0})
        self._order, self._first_due_ms = INSTANT, 0

    def fill_up_to(self, pending: int) -> None:
        """Offer as many messages as it takes until so many wait."""
        queue, script = self.queue, _fill()
        queue.register()
        first, missing = self._offered, pending - queue.size()
        self._offered += missing
        for start in range(first, first + missing, _A_CALL):
            count = min(_A_CALL, first + missing - start)
            args = (
                *(start, count, self._first_due_ms, self._span_ms, self._order, pending),
                *(self._payload, int(queue.mirror_list), queue.keys.channel),
            )
            Call(script, queue.keys.waiting, args, lambda reply: None).run(queue.client)

    def forget_transferred(self) -> int:
        """Empty the broker list, and forget in the index what was in it, as our transfer does; return how much it was.

        Redisson's commands leave the index as it is. It would grow with each of their turns, and be resized in ours.
        """
        queue = self.queue
        transferred: list[Any] = queue.client.lrange(queue.name, 0, -1)
        if transferred:
            queue.client.hdel(queue.keys.index, *(payload[:_KEY_BYTES] for payload in transferred))
        queue.client.delete(queue.name)
        return len(transferred)
