"""Which queues are transferred: those the worker consumes, and all that are registered; also without a worker."""

from __future__ import annotations

import json
import signal
import struct
import time
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from celery_delayq.queue.keys import QueueKeys
from tests.ledger import ALL_WELL, Ledger
from tests.support import wait_until
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.on_cluster(always=True)


@pytest.fixture(scope="module")
def worker(broker_url: str, ledger_url: str) -> Iterator[Worker]:
    with Worker("-Q", "celery", broker=broker_url, ledger=ledger_url) as worker:
        yield worker


def offer_like_redisson(client: redis.Redis, queue: str, app: Celery, task_id: str) -> None:
    """Make a task due now in a queue that is not in our registry."""
    app.tasks["note"].apply_async(task_id=task_id, queue="template")
    payload = client.rpop("template")
    assert isinstance(payload, bytes)
    entry = b"\x08" + b"redisson" + struct.pack("<Q", len(payload)) + payload
    keys = QueueKeys.of(queue)
    due_ms = int(time.time() * 1000)
    client.zadd(keys.timeout_set, {entry: due_ms})
    client.publish(keys.channel, due_ms)


def listeners(client: redis.Redis, queue: str) -> int:
    """How many loops listen for new heads of a queue."""
    ((_channel, number),) = client.pubsub_numsub(QueueKeys.of(queue).channel)
    return int(number)


def test_due_tasks_reach_the_list_of_a_queue_whose_workers_are_down(
    app: Celery, worker: Worker, ledger: Ledger, broker_client: redis.Redis
) -> None:
    ids = [app.tasks["note"].apply_async(countdown=0.3, queue="down").id for _ in range(3)]
    wait_until(lambda: broker_client.llen("down") == 3, "they are on the broker list")
    pushed = [json.loads(message) for message in broker_client.lrange("down", 0, -1)]
    assert [message["headers"]["id"] for message in pushed] == ids[::-1]
    assert ledger.runs() == []


def test_delayed_tasks_run_where_the_registry_is_of_another_type(
    app: Celery, worker: Worker, ledger: Ledger, broker_client: redis.Redis
) -> None:
    broker_client.delete("delayq:queues")
    broker_client.set("delayq:queues", "of a wrong type")
    try:
        consumed, only_heard_of = (
            app.tasks["note"].apply_async(countdown=0.3, queue=queue).id for queue in ("celery", "heard-of")
        )
        many = app.delayq.apply_async_many(app.tasks["note"].s().set(countdown=0.3) for _ in range(3))
        wait_until(lambda: ledger.has([consumed, *(result.id for result in many)]), "they run", 20)
        wait_until(lambda: broker_client.llen("heard-of") == 1, f"{only_heard_of} is on its broker list")
    finally:
        broker_client.delete("delayq:queues")


def test_queues_that_a_worker_is_told_to_consume_are_transferred_and_no_longer_than_that(
    app: Celery, worker: Worker, ledger: Ledger, broker_client: redis.Redis
) -> None:
    offer_like_redisson(broker_client, "extra", app, "waits-for-a-consumer")
    app.tasks["note"].apply_async(countdown=0.2).get(timeout=20)
    timeout_set = QueueKeys.of("extra").timeout_set
    assert broker_client.zcard(timeout_set) == 1

    app.control.add_consumer("extra", reply=True)
    wait_until(lambda: ledger.has(["waits-for-a-consumer"]), "the added queue is transferred", 20)
    offer_like_redisson(broker_client, "extra", app, "finds-one")
    wait_until(lambda: ledger.has(["finds-one"]), "it still is", 20)

    app.control.cancel_consumer("extra", reply=True)
    wait_until(lambda: listeners(broker_client, "extra") == 0, "no loop listens any more")
    offer_like_redisson(broker_client, "extra", app, "finds-none")
    app.tasks["note"].apply_async(countdown=0.2).get(timeout=20)
    assert broker_client.zcard(timeout_set) == 1
    assert listeners(broker_client, "celery") == 1


def test_the_command_serves_lists_that_it_is_told(
    broker_url: str, ledger_url: str, app: Celery, broker_client: redis.Redis
) -> None:
    """So does nobody else where only Java offers: the registry does not know of that."""
    with CeleryCommand("delayq", "transfer", "-Q", "jobs, more", broker=broker_url, ledger=ledger_url) as command:
        wait_until(lambda: listeners(broker_client, "more") == 1, "it listens", 20)
        for name in ("jobs", "more"):
            offer_like_redisson(broker_client, name, app, "any")
            wait_until(lambda name=name: broker_client.llen(name) == 1, f"it is in {name}", 20)
        command.send_signal(signal.SIGTERM)
        assert command.wait() == 0


def test_the_command_transfers_without_a_worker(
    broker_url: str, ledger_url: str, app: Celery, broker_client: redis.Redis
) -> None:
    with CeleryCommand("delayq", "transfer", broker=broker_url, ledger=ledger_url) as command:
        command.wait_for_log("Transferring")
        for _ in range(2):
            app.tasks["note"].apply_async(countdown=0.2, queue="idle")
        wait_until(lambda: broker_client.llen("idle") == 2, "they are on the broker list", 20)
        command.send_signal(signal.SIGTERM)
        assert command.wait() == 0
        assert "Traceback" not in command.log
        assert command.session() == set()


def test_workers_share_the_work_and_run_every_task_once(
    app: Celery, worker: Worker, ledger: Ledger, broker_url: str
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url), Worker(broker=broker_url, ledger=ledger.url):
        due = time.time() + 0.5
        promised = {
            app.tasks["note"].apply_async(countdown=0.5 + n / 200).id: (due + n / 200) * 1000 for n in range(200)
        }
        wait_until(lambda: ledger.has(promised), "all ran", 20)
        app.tasks["note"].apply_async(countdown=0.5).get(timeout=20)
    assert ledger.verdict(promised) == ALL_WELL
