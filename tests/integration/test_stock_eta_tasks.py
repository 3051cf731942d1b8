"""Tasks with an eta from stock producers wait in Redis as soon as a worker has fetched them, and not in the worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from tests.integration.long_tasks import in_flight
from tests.integration.test_nothing_held import ask
from tests.ledger import ALL_WELL, Ledger
from tests.state import now_ms
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("stock Celery cannot use a cluster")

FAR = datetime(2040, 1, 1, tzinfo=timezone.utc)
SOME = 300


@pytest.fixture
def stock(broker_url: str, ledger: Ledger, waiting: DelayedQueue) -> Iterator[Celery]:
    """An app with kombu's own transport."""
    with publisher(broker_url.replace("delayq", "redis"), ledger.url, delayqs=0) as stock:
        yield stock


def soon(client: redis.Redis, seconds: float) -> datetime:
    """A time by the server's clock."""
    return datetime.fromtimestamp(now_ms(client) / 1000 + seconds, timezone.utc)


def start(app: Celery, ledger: Ledger, pool: str = "solo", **conf: Any) -> Worker:
    """A worker that names what it holds itself, and nothing else, as scheduled."""
    conf = {"delayq_inspect_limit": 0, **conf}
    return Worker(pool=pool, broker=app.conf.broker_url, ledger=ledger.url, conf=conf, stops=True)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_holds_none_of_them_and_runs_them_on_time(
    pool: str, stock: Celery, app: Celery, waiting: DelayedQueue, ledger: Ledger
) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    client = waiting.client
    with start(app, ledger, pool) as worker:
        prefetch_count = ask(app, "stats")["prefetch_count"]
        far = [stock.tasks["note"].apply_async(eta=FAR, priority=number % 2 * 3).id for number in range(SOME)]
        promised = {}
        for number in range(20):
            eta = soon(client, 6 + number / 20)
            promised[stock.tasks["note"].apply_async(eta=eta).id] = eta.timestamp() * 1000
        lists = [waiting, DelayedQueue(client, "celery\x06\x163")]
        wait_until(lambda: sum(queue.size() for queue in lists) >= SOME, "all that is far wait", 20)

        stock.tasks["note"].delay().get(timeout=20)
        wait_until(lambda: in_flight(client) == 0, "what ran is acknowledged", 20)
        assert client.exists("celery", "celery\x06\x163", "unacked") == 0
        assert ask(app, "scheduled") == ask(app, "reserved") == []
        assert ask(app, "stats")["prefetch_count"] == prefetch_count

        assert {task.id for task in app.delayq.scheduled(due_after=FAR, limit=1000)} == {*far}
        assert all(app.delayq.cancel(far[1:]).values())
        assert app.delayq.reschedule(far[0], eta=soon(client, 0))
        wait_until(lambda: ledger.has([*promised, far[0]]), "all ran", 20)
        assert ledger.verdict(promised | {far[0]: 0.0}) == ALL_WELL
        assert worker.log.count("received") == 22


def test_nothing_is_lost_when_workers_are_killed_in_the_middle(
    stock: Celery, app: Celery, waiting: DelayedQueue, ledger: Ledger
) -> None:
    ids = [stock.tasks["note"].apply_async(eta=FAR).id for _ in range(SOME)]
    with ExitStack() as stack:
        worker = start(app, ledger)
        stack.push(worker.__exit__)
        for part in (1, SOME // 2):
            worker.start()
            wait_until(lambda part=part: waiting.size() >= part, "it is in the middle of it")
            worker.kill()
        worker.start()
        wait_until(lambda: waiting.size() == SOME, "all of them wait", 60)
        assert in_flight(waiting.client) == waiting.client.llen("celery") == len(ledger.runs()) == 0
        assert all(app.delayq.reschedule(ids, countdown=0.1).values())
        wait_until(lambda: ledger.has(ids), "all ran")
    assert ledger.verdict(dict.fromkeys(ids, 0.0)) == ALL_WELL


def test_what_was_revoked_before_it_was_fetched_is_dropped_at_once(
    stock: Celery, app: Celery, waiting: DelayedQueue, ledger: Ledger
) -> None:
    with start(app, ledger):
        assert ask(app, "revoked") == []  # it listens
        app.control.revoke(["revoked"])
        wait_until(lambda: ask(app, "revoked") == ["revoked"], "the worker knows")
        for task_id in ("revoked", "other"):
            stock.tasks["note"].apply_async(eta=FAR, task_id=task_id)
        wait_until(lambda: app.delayq.get("other"), "the other one waits")
        wait_until(lambda: app.AsyncResult("revoked").state == "REVOKED", "it is dropped")
        app.control.revoke(["other"])
        assert app.AsyncResult("other").state == "REVOKED"
    assert waiting.size() == waiting.client.llen("celery") == in_flight(waiting.client) == 0


def test_with_the_option_off_a_worker_holds_them_as_stock_does(
    stock: Celery, app: Celery, waiting: DelayedQueue, ledger: Ledger
) -> None:
    task_id = stock.tasks["note"].apply_async(eta=FAR).id
    with start(app, ledger, broker_transport_options={"delay_eta_tasks": False}):
        (held,) = wait_until(lambda: ask(app, "scheduled"), "the worker holds it")
        assert held["request"]["id"] == task_id
        assert (waiting.size(), in_flight(waiting.client)) == (0, 1)
    assert waiting.client.llen("celery") == 1
