"""Huey: https://huey.readthedocs.io/en/latest/guide.html."""

import os
import time

from huey import RedisHuey
from ledger import started

huey = RedisHuey("others", url=os.environ["BROKER"])


@huey.task()
def note(number: int, due: float) -> None:
    started(number, due)


def send(countdowns: list[float]) -> None:
    for number, countdown in enumerate(countdowns):
        due = time.time() + countdown
        if countdown:
            note.schedule((number, due), delay=countdown)
        else:
            note(number, due)
