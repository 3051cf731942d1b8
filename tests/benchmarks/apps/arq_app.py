"""arq: https://arq-docs.helpmanual.io."""

import asyncio
import os
import time
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from ledger import started


async def note(context: Any, number: int, due: float) -> None:
    started(number, due)


class WorkerSettings:
    functions = (note,)
    redis_settings = RedisSettings.from_dsn(os.environ["BROKER"])


def send(countdowns: list[float]) -> None:
    asyncio.run(_send(countdowns))


async def _send(countdowns: list[float]) -> None:
    pool = await create_pool(WorkerSettings.redis_settings)
    for number, countdown in enumerate(countdowns):
        await pool.enqueue_job("note", number, time.time() + countdown, _defer_by=countdown or None)
    await pool.aclose()
