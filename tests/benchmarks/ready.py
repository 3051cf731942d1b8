"""Ready: Redis' time to remove one message from a list of ready ones, by its place and by the size of messages."""

from __future__ import annotations

from functools import partial

import redis

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import in_turns
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale

#: Around a kilobyte, Redis packs messages in another way.
_PAYLOADS = (300, 900, 1_400, 9_000)

#: Where the message is -> how many of a hundred are newer. Far from both ends, something takes its place.
_PLACES = {"the newest": 0, "near an end": 9, "in the middle": 49, "the oldest": 100}


def run(scale: Scale) -> Report:
    report = Report(
        f"ready: Redis' time for take_back.lua, which removes one of {scale.ready_messages:,} ready messages",
        notes=["Near an end, most of it is LREM, which walks there. How long it takes depends on the memory."],
    )
    for size in _PAYLOADS:
        figure = report.figure(f"payload of {size:,} bytes", "ms", baseline="the newest")
        with PrivateRedis() as server, server.client() as client:
            queue = DelayedQueue(client, "celery")
            _fill(queue, scale.ready_messages, size)
            turns = {name: partial(_take_back, queue, percent) for name, percent in _PLACES.items()}
            for name, samples in in_turns(scale.ready_rounds, turns).items():
                for sample in samples:
                    figure.add(name, sample)
    return report


def _fill(queue: DelayedQueue, number: int, size: int) -> None:
    for begin in range(0, number, 1_000):
        queue.client.lpush("celery", *(f"{at:0{size}}" for at in range(begin, min(begin + 1_000, number))))


def _take_back(queue: DelayedQueue, percent: int) -> float:
    """Take a message back, and send it again; return Redis' time for the first in milliseconds."""
    client: redis.Redis = queue.client
    place = (client.llen("celery") - 1) * percent // 100
    message = client.lindex("celery", place)
    client.config_resetstat()
    assert queue.take_back([(place, message)], [None], [b"its task is cancelled"]) == [True]
    spent_ms = client.info("commandstats")["cmdstat_evalsha"]["usec"] / 1_000
    client.lpush("celery", message)
    return float(spent_ms)
