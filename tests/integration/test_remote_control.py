"""`celery inspect` shows what waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.worker.control import Panel

from celery_delayq import DelayedQueue, DelayQ
from celery_delayq.basics.times import to_datetime
from examples.private_redis import PrivateRedis
from tests.state import now_ms
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand, Worker

ETA = datetime(2040, 1, 1, tzinfo=timezone.utc)

pytestmark = [pytest.mark.usefixtures("waiting", "ledger"), pytest.mark.on_cluster]


@pytest.fixture
def worker(broker_url: str, ledger_url: str) -> Iterator[Worker]:
    """A worker that consumes `celery` and `other`, and names at most five waiting tasks."""
    conf = {"delayq_inspect_limit": 5}
    with Worker("-Q", "celery,other", broker=broker_url, ledger=ledger_url, conf=conf) as worker:
        yield worker


def reply(app: Celery, command: str) -> Any:
    """What the only worker replies to an inspect command."""
    # A worker of stock Celery may be ready before it listens to remote control.
    (found,) = wait_until(lambda: app.control.broadcast(command, reply=True, timeout=1, limit=1), "the reply", 30)
    (answer,) = found.values()
    return answer


def output(*arguments: str, broker: str, ledger: str) -> str:
    """What `celery ...` prints."""
    with CeleryCommand(*arguments, broker=broker, ledger=ledger) as command:
        assert command.wait() == 0, command.log
        return command.log


def test_inspect_scheduled_shows_what_waits_in_the_shape_of_celery(app: Celery, worker: Worker) -> None:
    result = app.tasks["note"].apply_async(([1, "x"],), {}, eta=ETA, priority=3)
    (shown,) = reply(app, "scheduled")
    hostname = shown["request"].pop("hostname")
    assert hostname.startswith("w")
    assert shown == {
        "eta": ETA.isoformat(),
        "priority": 6,
        "request": {
            "id": result.id,
            "name": "note",
            "type": "note",
            "args": [[1, "x"]],
            "kwargs": {},
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {"exchange": "", "routing_key": "celery", "priority": 3, "redelivered": False},
            "worker_pid": None,
        },
    }


def test_the_answer_is_that_of_a_worker_of_stock_celery_that_holds_the_tasks(
    app: Celery, redis_server: PrivateRedis, broker_url: str, ledger_url: str
) -> None:
    conf = {"timezone": "Asia/Kolkata"}
    etas = [
        *(ETA, ETA + timedelta(microseconds=1), ETA + timedelta(seconds=1, microseconds=999_999)),
        (ETA + timedelta(seconds=2)).astimezone(timezone(timedelta(hours=-3))),
        (ETA + timedelta(seconds=3, microseconds=5)).replace(tzinfo=None),
    ]

    def answer(app: Celery, broker: str) -> list[dict[str, Any]]:
        with Worker(broker=broker, ledger=ledger_url, conf=conf):
            for number, eta in enumerate(etas):
                app.tasks["note"].apply_async(([1, "x"],), eta=eta, task_id=str(number), priority=number % 2 * 3)
            wait_until(lambda: len(reply(app, "scheduled")) == len(etas), "it knows all of them")
            shown: list[dict[str, Any]] = reply(app, "scheduled")
        for task in shown:
            del task["request"]["hostname"]
        return sorted(shown, key=lambda task: str(task["request"]["id"]))

    url = f"{redis_server.url.rpartition('/')[0]}/5"
    with redis.Redis.from_url(url) as client:
        client.flushdb()  # a stock worker that stops leaves its tasks there
    with publisher(url, ledger_url, delayqs=0, **conf) as stock:
        assert answer(app, broker_url) == answer(stock, url)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_worker_holds_for_a_moment_is_shown_with_the_eta_of_its_header(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str, pool: str
) -> None:
    """It waits for the rest of the lead by a time of its own, which is that of the server."""
    conf = {"delayq_inspect_limit": 0, "delayq_transfer_lead": 0.1}
    with Worker(broker=broker_url, ledger=ledger_url, conf=conf, pool=pool):
        reply(app, "scheduled")
        soon_s = now_ms(waiting.client) / 1000 + 1
        etas = {}
        for number in range(100):
            eta = datetime.fromtimestamp(soon_s + number / 10, timezone.utc)
            etas[app.tasks["note"].apply_async(eta=eta).id] = eta.isoformat()
        shown = []
        while len(shown) < 5:
            shown += reply(app, "scheduled")
            assert waiting.size(), "there is more to come"
    for task in shown:
        assert (task["eta"], task["priority"]) == (etas[task["request"]["id"]], 6)


def test_an_eta_that_is_not_the_due_time_is_not_shown(app: Celery, worker: Worker, waiting: DelayedQueue) -> None:
    """As Java may have offered it."""
    for eta in (None, "no time", "2030-01-01T00:00:00+00:00"):
        app.tasks["note"].apply_async(eta=ETA)
        (entry,) = [entry for entry in waiting.peek(9) if entry.score == ETA.timestamp() * 1000]
        message = json.loads(entry.payload)
        message["headers"]["eta"] = eta
        waiting.amend(entry, json.dumps(message).encode(), eta=to_datetime(entry.score + 1))
    due = (ETA + timedelta(milliseconds=1)).isoformat()
    assert [shown["eta"] for shown in reply(app, "scheduled")] == [due] * 3


def test_only_the_first_in_due_order_of_the_workers_queues_are_shown(app: Celery, worker: Worker) -> None:
    note = app.tasks["note"]
    note.apply_async(eta=ETA - timedelta(days=1), queue="not consumed")
    expected = []
    for number in range(8):
        queue, priority = ("celery", "other")[number % 2], number % 4 * 3
        eta = ETA + timedelta(seconds=number)
        expected.append(note.apply_async(eta=eta, queue=queue, priority=priority).id)
    assert [shown["request"]["id"] for shown in reply(app, "scheduled")] == expected[:5]
    assert reply(app, "dump_schedule") == reply(app, "scheduled")


def test_a_pickle_is_shown_by_its_headers_and_not_opened(app: Celery, worker: Worker) -> None:
    app.tasks["note"].apply_async(({1},), eta=ETA, serializer="pickle")
    (shown,) = reply(app, "scheduled")
    assert (shown["request"]["args"], shown["request"]["kwargs"]) == ("({1},)", "{}")


def test_what_is_no_task_is_left_out(app: Celery, worker: Worker, waiting: DelayedQueue) -> None:
    for payload in (b"no message", b"{}", b'{"properties": {}, "headers": {}}'):
        waiting.offer(payload, countdown=60)
    waiting.client.zadd(waiting.keys.timeout_set, {b"no entry": now_ms(waiting.client) + 60_000})
    result = app.tasks["note"].apply_async(eta=ETA)
    assert [shown["request"]["id"] for shown in reply(app, "scheduled")] == [result.id]


def test_a_queue_that_the_server_refuses_leaves_celerys_answer(
    app: Celery, worker: Worker, broker_client: redis.Redis
) -> None:
    broker_client.set("redisson_delay_queue_timeout:{celery}", "of a wrong type")
    assert reply(app, "scheduled") == []
    worker.wait_for_log("Cannot list waiting tasks")


def test_inspect_delayed_counts(app: Celery, worker: Worker, broker_url: str, ledger_url: str) -> None:
    for number in range(8):
        app.tasks["note"].apply_async(eta=ETA + timedelta(seconds=number), priority=number)
    counted = {"celery": {"delayed": 8, "next_due": ETA.isoformat()}, "other": {"delayed": 0, "next_due": None}}
    assert reply(app, "delayed") == counted
    shown = output("inspect", "--json", "--timeout=3", "delayed", broker=broker_url, ledger=ledger_url)
    assert list(json.loads(shown.splitlines()[-1]).values()) == [counted]


def test_an_app_with_another_broker_gets_celerys_answers(redis_server: PrivateRedis, ledger_url: str) -> None:
    """The commands are in a table that all apps of a process share."""
    url = f"{redis_server.url.rpartition('/')[0]}/6"
    with redis.Redis.from_url(url) as client:
        client.flushdb()  # a stock worker that stops leaves its tasks there
    with publisher(url, ledger_url) as stock, Worker(broker=url, ledger=ledger_url) as worker:
        assert reply(stock, "delayed") == {}
        result = stock.tasks["note"].apply_async(countdown=3600)
        (held,) = wait_until(lambda: reply(stock, "scheduled"), "the worker holds it")
        assert held["request"]["id"] == result.id
        stock.control.revoke(result.id)
        worker.wait_for_log(f"Tasks flagged as revoked: {result.id}")


def test_commands_are_registered_once() -> None:
    DelayQ(Celery("one", set_as_current=False))
    before = dict(Panel.data)
    DelayQ(Celery("two", set_as_current=False))
    assert dict(Panel.data) == before
