"""The whole way from stock Celery to this package and back, as docs/migration.md says, while tasks are published.

Workers of one kind take over from the other, then producers, and later the reverse. A ledger of every execution tells
that no task is lost, runs twice, or runs early.
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.integration.long_tasks import in_flight
from tests.ledger import ALL_WELL, Ledger
from tests.support import beside, lasting_keys, wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.one_server("stock Celery cannot use a cluster")

STOCK, OURS = "redis", "delayq"

#: Countdowns in seconds: some are over before the next step of the move, some last over several.
_COUNTDOWNS = (0.2, 1, 2, 3, 4, 5)


@dataclass
class Site:
    """Producers and workers on one Redis, of either kind."""

    server: PrivateRedis
    ledger: Ledger
    client: redis.Redis
    stack: ExitStack
    #: What was published: id in the ledger -> due, unix time in ms.
    promised: dict[str, float] = field(default_factory=dict)

    def url(self, kind: str) -> str:
        return f"{kind}://127.0.0.1:{self.server.port}/0"

    def worker(self, kind: str, acks_late: bool) -> Worker:
        """Start a worker.

        With threads: a prefork worker of Celery 5.7 that is stopped under load may wait for ever, stock or not.
        """
        conf = {"delayqs": int(kind == OURS), "task_acks_late": acks_late}
        worker = Worker(pool="threads", broker=self.url(kind), ledger=self.ledger.url, conf=conf)
        self.stack.push(worker.__exit__)
        worker.start()
        return worker

    def workers(self, kind: str) -> list[Worker]:
        """Start a worker that acknowledges early, and one that acknowledges late."""
        workers = [self.worker(kind, acks_late) for acks_late in (False, True)]
        for worker in workers:
            worker.wait_until_ready()
        return workers

    def replace(self, workers: list[Worker], kind: str) -> list[Worker]:
        """Restart workers, one after the other."""
        successors = []
        for worker, acks_late in zip(workers, (False, True), strict=True):
            stop(worker)
            successor = self.worker(kind, acks_late)
            wait_until(lambda new=successor: "succeeded" in new.log, "it works", 40)
            successors.append(successor)
        return successors

    @contextmanager
    def producer(self, kind: str) -> Iterator[None]:
        """Publish about 100 tasks a second: immediate, delayed, and such as send themselves again."""
        with publisher(self.url(kind), self.ledger.url, delayqs=int(kind == OURS)) as app:

            def publish(ended: threading.Event) -> None:
                for number in itertools.count():
                    if ended.wait(0.02):
                        return
                    self.publish(app, number)

            with beside(publish):
                yield

    def publish(self, app: Celery, number: int) -> None:
        """Publish two tasks, and every now and then one that retries."""
        note, countdown = app.tasks["note"], _COUNTDOWNS[number % len(_COUNTDOWNS)]
        eta = datetime.now(timezone.utc) + timedelta(seconds=countdown)
        self.promised[note.apply_async(eta=eta, priority=number % 2 * 3).id] = eta.timestamp() * 1000
        self.promised[app.tasks["late_ack"].delay().id] = 0.0
        if number % 10 == 0:
            again = app.tasks["try_again"].apply_async((1, countdown)).id
            self.promised |= {f"{again}/0": 0.0, f"{again}/1": eta.timestamp() * 1000}

    def command(self, *arguments: str) -> CeleryCommand:
        """A command of this package, for an app that is stock again."""
        given = ("-b", self.url(OURS), "delayq", *arguments)
        return CeleryCommand(*given, broker=self.url(STOCK), ledger=self.ledger.url, conf={"delayqs": 0})

    def delayed(self) -> int:
        """How many tasks wait in Redis."""
        return sum(self.client.zcard(key) for key in self.client.scan_iter("redisson_delay_queue_timeout:*"))

    def publishes_on(self, count: int = 100) -> None:
        """Wait until so many tasks more were published."""
        goal = len(self.promised) + count
        wait_until(lambda: len(self.promised) >= goal, "producers publish")


def stop(worker: CeleryCommand) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.fixture
def site(broker_server: PrivateRedis, broker_client: redis.Redis, ledger: Ledger) -> Iterator[Site]:
    broker_client.flushall()
    with ExitStack() as stack:
        yield Site(broker_server, ledger, broker_client, stack)


def release(site: Site, workers: list[Worker]) -> list[Worker]:
    """Stop all workers, release what waits, start stock workers."""
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0, 0]
    assert site.delayed() > 0
    done = site.command("release", "--yes")
    site.stack.push(done.__exit__)
    done.start()
    assert done.wait() == 0, done.log
    assert site.delayed() == 0
    return site.workers(STOCK)


def let_them_wait(site: Site, workers: list[Worker]) -> list[Worker]:
    """Let `transfer` move what waits while stock workers take over, and until nothing waits."""
    transfer = site.command("transfer")
    site.stack.push(transfer.__exit__)
    transfer.start()
    transfer.wait_for_log("connected")
    successors = site.replace(workers, STOCK)
    wait_until(lambda: site.delayed() == 0, "nothing waits in Redis", 40)
    stop(transfer)
    return successors


@pytest.mark.parametrize("back", [release, let_them_wait])
def test_nothing_is_lost_or_runs_twice_or_early_on_the_way_there_and_back(
    site: Site, back: Callable[[Site, list[Worker]], list[Worker]]
) -> None:
    workers = site.workers(STOCK)
    with site.producer(STOCK):
        wait_until(lambda: len(site.ledger.runs()) > 100, "stock workers work")
        workers = site.replace(workers, OURS)
        assert site.delayed() > 0, "tasks of stock producers wait in Redis"
        site.publishes_on()
    with site.producer(OURS):
        site.publishes_on(400)
    with site.producer(STOCK):
        site.publishes_on()
        workers = back(site, workers)
        site.publishes_on()
        wait_until(lambda: len(site.promised) > 1000, "enough is published")

    wait_until(lambda: site.ledger.has(site.promised), "all ran", 60)
    wait_until(lambda: site.client.hlen("unacked") == in_flight(site.client) == 0, "all are acknowledged")
    assert site.ledger.verdict(site.promised) == ALL_WELL
    for worker in workers:
        stop(worker)
    assert not [key for key in lasting_keys(site.client) if not key.startswith(("_kombu.", "delayq:queues"))]
