"""Stock producers and workers share a queue with ours, in every mixture and in both directions of a rolling deploy."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import kombu
import pytest
import redis
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.integration.long_tasks import add_long_tasks, in_flight, long_worker, open_gate, task_ids
from tests.ledger import ALL_WELL, Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("stock Celery cannot use a cluster")

#: What makes a worker or a producer one with kombu's own transport, and one with ours.
STOCK, OURS = "redis", "delayq"

StartWorker = Callable[..., Worker]


def delayqs(kind: str) -> int:
    """How many `DelayQ(app)` an app of this kind has."""
    return int(kind == OURS)


@pytest.fixture
def apps(broker_server: PrivateRedis, ledger: Ledger) -> Iterator[dict[str, Celery]]:
    """An app of each kind, to publish with."""
    with ExitStack() as stack:
        yield {
            kind: add_long_tasks(
                stack.enter_context(
                    publisher(f"{kind}://127.0.0.1:{broker_server.port}/0", ledger.url, delayqs=delayqs(kind))
                ),
                ledger,
            )
            for kind in (STOCK, OURS)
        }


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


@pytest.fixture
def start(broker_server: PrivateRedis, ledger: Ledger) -> Iterator[StartWorker]:
    """Starts workers of a kind; they stop at the end of the test."""
    with ExitStack() as stack:

        def start(kind: str, *options: str, conf: dict[str, Any] | None = None, **kwargs: Any) -> Worker:
            url = f"{kind}://127.0.0.1:{broker_server.port}/0"
            conf = {"delayqs": delayqs(kind), **(conf or {})}
            return stack.enter_context(long_worker(*options, broker=url, ledger=ledger, conf=conf, **kwargs))

        yield start
        open_gate(ledger)


def publish(apps: dict[str, Celery], count: int) -> list[str]:
    """Publish tasks of several priorities, from producers of both kinds in turn."""
    kinds = itertools.cycle(apps.values())
    return [next(kinds).tasks["note"].apply_async(priority=number % 10).id for number in range(count)]


def stop(worker: Worker) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def all_ran_once(ledger: Ledger, ids: list[str], client: redis.Redis) -> None:
    """Wait until all tasks ran; none of them twice, and none is left anywhere."""
    wait_until(lambda: ledger.has(ids), "all ran", 40)
    wait_until(lambda: in_flight(client) == client.hlen("unacked") == 0, "all are acknowledged")
    assert ledger.verdict(dict.fromkeys(ids, 0.0)) == ALL_WELL
    assert not list(client.scan_iter("celery*", _type="list"))


@contextmanager
def publishing(apps: dict[str, Celery]) -> Iterator[list[str]]:
    """Publish all the time, about 200 tasks a second; gives their ids."""
    ids: list[str] = []
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.05):
            ids.extend(publish(apps, 10))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ids
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_producers_and_workers_of_both_kinds_share_a_queue(
    apps: dict[str, Celery], ledger: Ledger, start: StartWorker, broker_client: redis.Redis, pool: str
) -> None:
    ids = publish(apps, 200)
    workers = {kind: start(kind, pool=pool) for kind in (STOCK, OURS)}
    for _ in range(10):
        ids += publish(apps, 20)
        wait_until(lambda ids=ids: ledger.has(ids), "all ran", 40)
    all_ran_once(ledger, ids, broker_client)
    for worker in workers.values():
        assert "succeeded" in worker.log, "it took its share"


@pytest.mark.parametrize("producer", [STOCK, OURS])
@pytest.mark.parametrize("consumer", [STOCK, OURS])
def test_any_producer_feeds_any_worker(
    apps: dict[str, Celery],
    ledger: Ledger,
    start: StartWorker,
    broker_client: redis.Redis,
    producer: str,
    consumer: str,
) -> None:
    start(consumer, pool="threads")
    ids = publish({producer: apps[producer]}, 100)
    results = [apps[producer].AsyncResult(task_id) for task_id in ids]
    assert [result.get(timeout=20) for result in results] == [None] * 100
    all_ran_once(ledger, ids, broker_client)


@pytest.mark.parametrize(("old", "new"), [(STOCK, OURS), (OURS, STOCK)], ids=["there", "back"])
@pytest.mark.parametrize("acks_late", [False, True])
def test_a_rolling_deploy_loses_nothing_and_runs_nothing_twice(
    apps: dict[str, Celery],
    ledger: Ledger,
    start: StartWorker,
    broker_client: redis.Redis,
    old: str,
    new: str,
    acks_late: bool,
) -> None:
    """With threads: a prefork worker of Celery 5.7 that is stopped under load may wait for ever, stock or not."""
    conf = {"task_acks_late": acks_late}
    workers = [start(old, pool="threads", conf=conf) for _ in range(2)]
    with publishing(apps) as ids:
        wait_until(lambda: len(ledger.runs()) > 100, "the old ones work", 20)
        for worker in workers:
            successor = start(new, pool="threads", conf=conf)
            stop(worker)
            wait_until(lambda log=successor: "succeeded" in log.log, "a new one works", 20)
        wait_until(lambda: len(ids) > 200, "enough is published")
    all_ran_once(ledger, ids, broker_client)


@pytest.mark.skipif(kombu.VERSION < (5, 7), reason="kombu 5.6 looks for it every 100 s; no option makes that less")
def test_what_a_killed_stock_worker_left_is_restored(
    apps: dict[str, Celery], ledger: Ledger, start: StartWorker, broker_client: redis.Redis
) -> None:
    victim = start(STOCK, pool="prefork", concurrency=1, conf={"task_acks_late": True})
    ids = [apps[STOCK].tasks["gated"].delay().id for _ in range(10)]
    wait_until(lambda: len(ledger.runs()) == 1 and broker_client.hlen("unacked") == 4, "four are reserved")
    victim.kill()
    open_gate(ledger)
    ledger.client.delete("ledger")
    options = {"visibility_timeout": 1, "unacked_restore_interval": 0.2, "unacked_restore_throttle": 1}
    worker = start(OURS, pool="prefork", transport=options)
    worker.wait_for_log("it only applies to messages that workers with kombu's own transport left behind")
    all_ran_once(ledger, ids, broker_client)


def test_a_stock_worker_at_work_is_not_robbed(
    apps: dict[str, Celery], ledger: Ledger, start: StartWorker, broker_client: redis.Redis
) -> None:
    """With kombu's own visibility timeout, of an hour."""
    start(STOCK, pool="prefork", concurrency=1, conf={"task_acks_late": True})
    ids = [apps[STOCK].tasks["gated"].delay().id for _ in range(4)]
    wait_until(lambda: broker_client.hlen("unacked") == 4, "all are reserved")
    start(OURS, transport={"unacked_restore_interval": 0.2, "unacked_restore_throttle": 1})
    begin = time.monotonic()
    while time.monotonic() - begin < 2:
        apps[OURS].tasks["note"].delay().get(timeout=10)
    assert broker_client.hlen("unacked") == 4
    open_gate(ledger)
    wait_until(lambda: ledger.has(ids), "all ran", 20)
    assert len([run for run in ledger.runs() if run.task_id in ids]) == 4


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT], ids=["warm", "cold"])
def test_going_back_to_stock_finds_everything_on_the_broker_lists(
    apps: dict[str, Celery], ledger: Ledger, start: StartWorker, broker_client: redis.Redis, how: signal.Signals
) -> None:
    ids = [apps[OURS].tasks["gated"].delay().id for _ in range(20)]
    ours = start(OURS, pool="prefork", concurrency=1, conf={"task_acks_late": True})
    wait_until(lambda: len(ledger.runs()) == 1 and in_flight(broker_client) == 4, "one runs, others are reserved")
    ours.send_signal(how)
    if how == signal.SIGTERM:
        ours.wait_for_log("Warm shutdown")
        open_gate(ledger)
    ours.wait()
    assert in_flight(broker_client) == 0
    begun = {run.task_id for run in ledger.runs()} if how == signal.SIGTERM else set()
    assert task_ids(broker_client) == [task_id for task_id in ids if task_id not in begun]
    open_gate(ledger)
    if how == signal.SIGQUIT:
        ledger.client.delete("ledger")
    start(STOCK, pool="prefork")
    all_ran_once(ledger, ids, broker_client)
