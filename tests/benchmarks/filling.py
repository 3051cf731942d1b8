"""Filling a delayed queue with many messages, quickly and always in the same way."""

from __future__ import annotations

import random
from itertools import repeat

from celery_delayq import DelayedQueue, scripts
from tests.benchmarks.scale import SEED

#: Size of a payload in bytes, that of a small Celery message.
PAYLOAD_BYTES = 600

_PER_PIPELINE = 1_000


def fill(queue: DelayedQueue, count: int, *, first_due_ms: int, span_ms: int) -> None:
    """Offer messages through `offer.lua`, with due times in random order.

    Args:
        count: how many.
        first_due_ms: the earliest due time, unix time in ms.
        span_ms: length of the time over which they are spread.
    """
    rng = random.Random(SEED)
    payload = rng.randbytes(PAYLOAD_BYTES)
    script = scripts.load("offer")
    queue.client.script_load(script.text)
    queue.register()
    for start in range(0, count, _PER_PIPELINE):
        pipeline = queue.client.pipeline(transaction=False)
        for _ in repeat(None, min(_PER_PIPELINE, count - start)):
            keys, args = scripts.offer_command(
                queue.keys,
                due_ms=first_due_ms + rng.randrange(span_ms),
                message_key=rng.randbytes(16),
                payload=payload,
                mirrored=queue.mirror_list,
            )
            pipeline.evalsha(script.sha, len(keys), *keys, *args)
        pipeline.execute()
