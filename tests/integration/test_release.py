"""`delayq.release`: the way back to stock Celery, whose workers wait for the eta by themselves."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.inspector.backup import Released
from celery_delayq.queue import codec
from tests.brokers import list_for
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import ready
from tests.ledger import ALL_WELL, Ledger, Verdict
from tests.state import FAR, calls, now_ms, offer
from tests.support import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

LATER = datetime(2040, 1, 1, tzinfo=timezone.utc)


def test_everything_is_on_its_broker_list_in_due_order_with_its_eta(app: Celery, waiting: DelayedQueue) -> None:
    etas = [LATER + timedelta(seconds=number) for number in range(250)]
    for eta in random.sample(etas, 250):
        app.tasks["note"].apply_async(eta=eta, priority=random.choice([0, 9]))
    told: list[tuple[int, int]] = []
    assert app.delayq.release(on_progress=lambda *now: told.append(now)) == Released(250, 0)
    assert told[-1] == (250, 250)
    found = [ready(waiting.client, name) for name in ("celery", list_for(waiting.client, "celery", 9))]
    for messages in found:
        dues = [message["headers"]["eta"] for message in messages]
        assert dues == sorted(dues)
        assert not any("delayq_due" in message["properties"] for message in messages)
    assert {message["headers"]["eta"] for messages in found for message in messages} == {e.isoformat() for e in etas}
    assert list(app.delayq.iter_scheduled()) == []
    assert app.delayq.release() == Released(0, 0)


def test_of_one_queue(app: Celery, waiting: DelayedQueue) -> None:
    for queue in ("celery", "other"):
        app.tasks["note"].apply_async(eta=LATER, queue=queue, task_id=queue)
    assert app.delayq.release("other") == Released(1, 0)
    assert [task.id for task in app.delayq.scheduled()] == ["celery"]
    with pytest.raises(TypeError, match="queue must be a name"):
        app.delayq.release(5)


def test_what_has_no_eta_for_workers_stays(app: Celery, waiting: DelayedQueue) -> None:
    """A worker would run it at once."""
    waiting.register(again=True)
    offer(waiting, "bytes", payload=b"\xff")
    waiting.client.zadd(waiting.keys.timeout_set, {codec.pack(bytes(8), b"java"): FAR})
    app.tasks["note"].apply_async(eta=LATER)
    assert app.delayq.release() == Released(1, 2)
    assert waiting.size() == 2
    assert waiting.client.llen("celery") == 1


@pytest.mark.parametrize("eta", [None, "2020-01-01T00:00:00+00:00", "no time"])
def test_an_eta_that_is_not_the_due_time_becomes_it(app: Celery, waiting: DelayedQueue, eta: str | None) -> None:
    """As Java may have offered it."""
    app.tasks["note"].apply_async(eta=LATER)
    (entry,) = waiting.peek()
    message = json.loads(entry.payload)
    message["headers"]["eta"] = eta
    waiting.amend(entry, json.dumps(message).encode())
    assert app.delayq.release() == Released(1, 0)
    assert ready(waiting.client)[0]["headers"]["eta"] == LATER.isoformat()


def test_a_hundred_in_one_step(app: Celery, waiting: DelayedQueue) -> None:
    for number in range(300):
        app.tasks["note"].apply_async(eta=LATER + timedelta(seconds=number))
    waiting.client.config_resetstat()
    app.delayq.release()
    # Three pages and an empty one, three steps.
    assert calls(waiting.client, "evalsha") + calls(waiting.client, "eval") <= 4 + 3 + 2
    assert calls(waiting.client, "lpush") == 300


def test_it_ends_although_workers_take_back_what_is_released(app: Celery, waiting: DelayedQueue) -> None:
    """Of the same due time, what comes back is behind what is released next."""
    for _ in range(150):
        app.tasks["note"].apply_async(eta=LATER)
    came_back = 0

    def take_back(done: int, total: int) -> None:
        nonlocal came_back
        while (message := waiting.client.rpop("celery")) and came_back < 1000:
            waiting.offer(message, eta=to_datetime(round(LATER.timestamp() * 1000)))
            came_back += 1

    assert app.delayq.release(on_progress=take_back) == Released(150, 150)
    assert (came_back, waiting.size()) == (150, 150)


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_it_does_no_harm_while_workers_run(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger, pool: str
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url, pool=pool) as worker:
        start_ms = now_ms(waiting.client) + 8_000
        promised = {}
        for number in range(50):
            eta = datetime.fromtimestamp(start_ms / 1000 + number % 10 / 100, timezone.utc)
            promised[app.tasks["note"].apply_async(eta=eta).id] = eta.timestamp() * 1000
        for _ in range(3):
            app.delayq.release()
            wait_until(lambda: waiting.size() == 50, "they wait again")
        assert in_flight(waiting.client) == waiting.client.llen("celery") == worker.log.count("received") == 0
        wait_until(lambda: ledger.has(promised), "all ran", 20)
    assert ledger.verdict(promised) == ALL_WELL


@pytest.mark.one_server("stock")
def test_stock_workers_run_it_when_it_is_due(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger
) -> None:
    start_ms = now_ms(waiting.client) + 4_000
    promised = {}
    for number in range(20):
        due_ms = start_ms + number * 50
        eta = datetime.fromtimestamp(due_ms / 1000, timezone.utc)
        promised[app.tasks["note"].apply_async(eta=eta).id] = float(due_ms)
    assert app.delayq.release() == Released(20, 0)
    with Worker(broker=broker_url.replace("delayq", "redis"), ledger=ledger.url) as worker:
        wait_until(lambda: waiting.client.llen("celery") == 0, "the worker fetched all", 20)
        assert waiting.size() == 0
        wait_until(lambda: ledger.has(promised), "all ran", 20)
        assert worker.log.count("received") >= 20
    assert ledger.verdict(promised) == Verdict(set(), set(), set())
