"""A consumer in a process of its own, for tests that kill or suspend it.

`python -m tests.consumer.lone_consumer PORT LEASE COUNT PLACE` fetches COUNT messages of the list "q", writes its id,
and looks after its lease from then on; once it has lost that, it writes "lost" and ends. With "elsewhere" for a PLACE,
its id does not say where it runs, so that nobody can ask for its process.
"""

from __future__ import annotations

import sys
import threading

import redis

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.watchdog import Watchdog
from celery_delayq.queue.connections import new_id
from celery_delayq.queue.keeper import Keeper


def main() -> None:
    """Consume until the process is killed or has lost its lease."""
    port, lease, count, place = sys.argv[1:]
    id = new_id() if place == "elsewhere" else None
    consumer = Consumer(lambda: redis.Redis(port=int(port)), lease_s=float(lease), id=id)
    consumer.join("q")
    for message in consumer.fetch("q", int(count)):
        consumer.hold("q", message)
    lost = threading.Event()
    Watchdog(consumer, Keeper(consumer.connect), on_lost=lost.set).start()
    print(consumer.id, flush=True)
    lost.wait()
    try:
        consumer.check()
    except LeaseLost:
        print("lost", len(consumer.held), flush=True)


if __name__ == "__main__":
    main()
