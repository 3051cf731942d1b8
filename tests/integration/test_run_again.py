"""A task that kills its process, or rejects its message, each time: it pauses for longer each time, and ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from celery_delayq import DeadLetters, Unique
from celery_delayq.queue.dead_letter import DELIVERY_LIMIT
from celery_delayq.transport.redelivery import DELIVERY_COUNT, REQUEUE_COUNT
from tests.brokers import list_for
from tests.integration.long_tasks import in_flight, long_worker
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import protocol_1

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("long_tasks", "empty_broker")]

#: How a task ends -> its name, the option that limits it, the header that counts it.
ENDS = {
    "killed": ("kill_worker", "delivery_limit", DELIVERY_COUNT),
    "rejected": ("rejecting_again", "requeue_limit", REQUEUE_COUNT),
}

#: The pools, and how their tasks can end: only a child process can be killed alone.
CASES = [
    # It takes long: Celery looks every 5 s whether a process is dead.
    pytest.param("prefork", "killed", marks=[pytest.mark.thorough, pytest.mark.versions]),
    ("prefork", "rejected"),
    pytest.param("threads", "rejected", marks=pytest.mark.one_server("the pool makes no difference there")),
    pytest.param("solo", "rejected", marks=pytest.mark.one_server("the pool makes no difference there")),
    pytest.param("gevent", "rejected", marks=pytest.mark.one_server("the pool makes no difference there")),
]


def start(broker_url: str, ledger: Ledger, pool: str, **options: Any) -> Any:
    conf = {"task_reject_on_worker_lost": True}
    return long_worker(broker=broker_url, ledger=ledger, pool=pool, concurrency=1, conf=conf, transport=options)


def runs_of(ledger: Ledger, result: AsyncResult) -> list[float]:
    """When a task has run."""
    return [run.at_ms / 1000 for run in ledger.runs() if run.task_id == result.id]


def wait_until_paused(app: Celery, result: AsyncResult) -> Any:
    wait_until(lambda: app.delayq.get(result) is not None, "it pauses")
    return app.delayq.get(result)


@pytest.mark.parametrize(("pool", "how"), CASES)
def test_it_pauses_and_is_a_dead_letter_in_the_end(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str, how: str
) -> None:
    name, option, _ = ENDS[how]
    with start(broker_url, ledger, pool, **{option: 2}):
        result = app.send_task(name)
        wait_until_paused(app, result)
        harmless = app.send_task("note", ("meanwhile",))
        wait_until(lambda: ledger.has([harmless.id]), "another one runs")
        assert len(runs_of(ledger, result)) == 1
        letters = DeadLetters(broker_client, list_for(broker_client, "celery"))
        wait_until(lambda: letters, "it is dead", 20)
        wait_until(lambda: in_flight(broker_client) == 0, "nothing is in flight")
        first, second = runs_of(ledger, result)
        assert second - first >= 0.9
        (letter,) = letters
        assert (letter.reason, letter.deliveries) == (DELIVERY_LIMIT, 2)
        assert result.id.encode() in letter.message
        with pytest.raises(Exception, match=f"has {how} its .* 2 times"):
            result.get(timeout=10)
        assert app.delayq.get(result) is None


@pytest.mark.parametrize(("pool", "how"), [("prefork", "killed"), ("prefork", "rejected")])
def test_the_next_pause_is_twice_as_long(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str, how: str
) -> None:
    """That one has killed its process, or rejected its message, five times; by default, only the former has a limit."""
    name, _, header = ENDS[how]
    with start(broker_url, ledger, pool):
        result = app.send_task(name, headers={header: 5})
        paused = wait_until_paused(app, result)
        assert timedelta(seconds=25) < paused.time_left <= timedelta(seconds=32)


def test_it_holds_its_unique_key_while_it_pauses(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    unique = Unique(key="order:7", for_="until_done")
    with start(broker_url, ledger, "prefork"):
        result = app.send_task("rejecting_again", headers={REQUEUE_COUNT: 5}, unique=unique)
        wait_until_paused(app, result)
        assert app.send_task("note", unique=unique).id == result.id
        assert app.delayq.cancel(result)
        other = app.send_task("note", unique=unique)
        assert other.id != result.id
        wait_until(lambda: ledger.has([other.id]), "the key is free")


def test_a_retry_begins_anew(app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger) -> None:
    """Celery sends the headers of a message on with a retry of its task."""
    with start(broker_url, ledger, "prefork"):
        result = app.send_task("retrying", headers={REQUEUE_COUNT: 5, DELIVERY_COUNT: 5, "mine": 1})
        headers = wait_until_paused(app, result).headers
        assert headers["mine"] == 1
        assert not {REQUEUE_COUNT, DELIVERY_COUNT} & headers.keys()


def test_a_message_of_protocol_1_pauses_too(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    with start(broker_url, ledger, "threads", requeue_limit=2), protocol_1(app):
        result = app.send_task("rejecting_again")
        letters = DeadLetters(broker_client, list_for(broker_client, "celery"))
        wait_until(lambda: letters, "it is dead", 20)
        first, second = runs_of(ledger, result)
        assert second - first >= 0.9
