"""streaq: https://streaq.readthedocs.io/en/latest/getting-started.html."""

import os
import time
from datetime import timedelta

import anyio
from ledger import started
from streaq import Worker

worker = Worker(redis_url=os.environ["BROKER"])


@worker.task
async def note(number: int, due: float) -> None:
    started(number, due)


def send(countdowns: list[float]) -> None:
    anyio.run(_send, countdowns)


async def _send(countdowns: list[float]) -> None:
    async with worker:
        for number, countdown in enumerate(countdowns):
            task = note.enqueue(number, time.time() + countdown)
            await (task.start(delay=timedelta(seconds=countdown)) if countdown else task)
