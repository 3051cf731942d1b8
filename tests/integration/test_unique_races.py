"""Many producers race for one unique key, some are killed: never do two wait, and never none where one was accepted."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue, Unique
from celery_delayq.queue import codec
from tests.integration.long_tasks import long_worker
from tests.integration.racing_keys import KEY
from tests.ledger import Ledger
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def producer(broker: str, ledger: str, *conflicts: str, threads: int = 25) -> Iterator[subprocess.Popen[str]]:
    """A process of producers, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.racing_keys", broker, ledger, str(threads), ",".join(conflicts)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "racing\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def holders(waiting: DelayedQueue) -> int:
    """How many waiting tasks hold a key, at one moment."""
    found = waiting.peek(1000)
    return sum(1 for entry in found if (offer_id := codec.OfferId.from_bytes(entry.id)) and offer_id.unique)


@pytest.mark.parametrize("conflicts", [["ignore", "raise"], ["replace"], ["ignore", "replace", "extend", "raise"]])
def test_never_do_two_wait(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger, conflicts: list[str]
) -> None:
    """A hundred threads in four processes, two of which are killed; beside them, a transfer and whoever cancels."""
    most = seen = cancelled = 0
    with (
        producer(broker_url, ledger.url, *conflicts) as first,
        producer(broker_url, ledger.url, *conflicts),
        producer(broker_url, ledger.url, *conflicts),
        producer(broker_url, ledger.url, *conflicts) as last,
    ):
        until = time.monotonic() + 5
        while time.monotonic() < until:
            found = holders(waiting)
            most, seen = max(most, found), seen + (found > 0)
            waiting.transfer(100)
            if random.random() < 0.05 and (task := app.delayq.waiting(KEY)) is not None:
                cancelled += app.delayq.cancel(task.id)
            if time.monotonic() > until - 2 and first.poll() is None:
                first.kill()
            if time.monotonic() > until - 1 and last.poll() is None:
                last.kill()
    assert most == 1
    assert seen
    assert holders(waiting) <= 1
    task = app.delayq.waiting(KEY)
    assert (task is None) == (holders(waiting) == 0)
    result = app.tasks["note"].apply_async(countdown=900, unique=KEY)
    assert app.delayq.was_new(result) == (task is None)
    assert app.delayq.waiting(KEY).id == (result.id if task is None else task.id)


def test_of_many_one_is_accepted(app: Celery, waiting: DelayedQueue) -> None:
    """And it waits: all others get its result."""
    start = threading.Barrier(50)

    def send(number: int) -> Any:
        start.wait()
        return app.tasks["note"].apply_async((number,), countdown=600, unique=KEY)

    with ThreadPoolExecutor(50) as threads:
        results = list(threads.map(send, range(50)))
    assert sum(map(app.delayq.was_new, results)) == 1
    assert len({result.id for result in results}) == 1
    assert [entry.score for entry in waiting.find(results[0].id)]
    assert waiting.size() == 1


def test_with_workers_that_are_killed(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger, broker_client: redis.Redis
) -> None:
    """Until it is done: what runs holds the key, so no two tasks with it run at the same time."""
    unique = Unique(key=KEY, for_="until_done", ttl=60)
    sent: list[str] = []
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            result = app.tasks["work_late"].apply_async((0.05,), countdown=random.choice([None, 0.05]), unique=unique)
            if app.delayq.was_new(result):
                sent.append(result.id)

    options: dict[str, Any] = {"broker": broker_url, "ledger": ledger, "transport": {"lease": 2}, "concurrency": 4}
    with ThreadPoolExecutor(8) as threads:
        sending = [threads.submit(send) for _ in range(8)]
        try:
            with long_worker(**options):
                for _ in range(3):
                    with long_worker(**options) as victim:
                        wait_until(lambda: ledger.executions(), "something ran")
                        time.sleep(random.random())
                        victim.kill()
        finally:
            stop.set()
    for future in sending:
        future.result()
    with long_worker(**options):
        wait_until(lambda: {it.task_id for it in ledger.executions() if it.ended_s} >= {*sent}, "all accepted ran", 60)
    spans = sorted((it.started_s, it.ended_s) for it in ledger.executions() if it.ended_s is not None)
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(spans)), "no two at a time"
