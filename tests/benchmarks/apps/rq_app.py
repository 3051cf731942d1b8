"""RQ: https://python-rq.org/docs/scheduling."""

import os
import time
from datetime import timedelta

from ledger import started
from redis import Redis
from rq import Queue

queue = Queue(connection=Redis.from_url(os.environ["BROKER"]))


def note(number: int, due: float) -> None:
    started(number, due)


def send(countdowns: list[float]) -> None:
    for number, countdown in enumerate(countdowns):
        due = time.time() + countdown
        if countdown:
            queue.enqueue_in(timedelta(seconds=countdown), note, number, due)
        else:
            queue.enqueue(note, number, due)
