"""SAQ: https://github.com/tobymao/saq#usage."""

import asyncio
import os
import time
from typing import Any

from ledger import started
from saq import Queue

queue = Queue.from_url(os.environ["BROKER"])


async def note(context: Any, *, number: int, due: float) -> None:
    started(number, due)


settings = {"queue": queue, "functions": [note]}


def send(countdowns: list[float]) -> None:
    asyncio.run(_send(countdowns))


async def _send(countdowns: list[float]) -> None:
    for number, countdown in enumerate(countdowns):
        due = time.time() + countdown
        await queue.enqueue("note", number=number, due=due, scheduled=due if countdown else 0)
    await queue.disconnect()
