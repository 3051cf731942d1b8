"""Dramatiq: https://dramatiq.io/guide.html."""

import os
import time
from datetime import timedelta

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from ledger import started

dramatiq.set_broker(RedisBroker(url=os.environ["BROKER"]))


@dramatiq.actor
def note(number: int, due: float) -> None:
    started(number, due)


def send(countdowns: list[float]) -> None:
    for number, countdown in enumerate(countdowns):
        due = time.time() + countdown
        note.send_with_options(args=(number, due), delay=timedelta(seconds=countdown) if countdown else None)
