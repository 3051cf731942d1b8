"""Stock Celery and celery_delayq: https://docs.celeryq.dev/en/stable/userguide/calling.html."""

import os
import time

from celery import Celery
from ledger import started

app = Celery("others", broker=os.environ["BROKER"])
if os.environ["BROKER"].startswith("delayq"):
    from celery_delayq import DelayQ

    DelayQ(app)


@app.task
def note(number: int, due: float) -> None:
    started(number, due)


def send(countdowns: list[float]) -> None:
    for number, countdown in enumerate(countdowns):
        note.apply_async((number, time.time() + countdown), countdown=countdown or None)
