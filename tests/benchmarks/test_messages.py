"""What scenarios measure with is the real thing: filled entries are offered ones, copies are Celery's messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.queue.codec import OfferId
from examples.private_redis import PrivateRedis
from tests.benchmarks.copies import Copier
from tests.benchmarks.figures import OURS, STOCK
from tests.benchmarks.filling import INSTANT, ORDERED, RANDOM, Filler
from tests.benchmarks.shop import broker_url, make_app
from tests.benchmarks.transfer import Caller, our_way, redissons_way
from tests.benchmarks.worker import BenchWorker
from tests.support import wait_until

FIRST_DUE_MS = 2_000_000_000_000


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as running:
        yield running


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[redis.Redis]:
    with server.client() as connected:
        yield connected


@pytest.mark.parametrize("order", [RANDOM, ORDERED, INSTANT])
def test_what_fills_a_queue_is_what_an_offer_writes(client: redis.Redis, order: str) -> None:
    queue = DelayedQueue(client, "celery", mirror_list=True)
    filler = Filler(queue, first_due_ms=FIRST_DUE_MS, span_ms=10_000, order=order, payload_bytes=50)
    filler.fill_up_to(1_500)
    queue.transfer(1)
    assert queue.size() == client.hlen(queue.keys.index) == client.llen(queue.keys.delay_list) == 1_500
    entries = queue.peek(1_500)
    assert {len(entry.payload) for entry in entries} == {50}
    assert all(FIRST_DUE_MS <= entry.score < FIRST_DUE_MS + 10_000 for entry in entries)
    ids = [OfferId.from_bytes(entry.id) for entry in entries]
    assert [entry.payload[:16] for entry in entries] == [one.message_key for one in ids if one is not None]
    assert all(one is not None and one.mirrored and not one.repeated for one in ids)
    offered = [one.offered_us for one in ids if one is not None]
    assert (offered == sorted(offered)) is (order != RANDOM)


def test_a_queue_is_filled_up_again(client: redis.Redis) -> None:
    queue = DelayedQueue(client, "celery")
    filler = Filler(queue, first_due_ms=1, span_ms=10)
    filler.fill_up_to(250)
    assert queue.transfer(100).moved == 100
    filler.fill_up_to(250)
    assert queue.size() == client.hlen(queue.keys.index) == 250


def test_what_waits_can_be_due_at_one_instant(client: redis.Redis) -> None:
    queue = DelayedQueue(client, "celery")
    filler = Filler(queue, first_due_ms=FIRST_DUE_MS, span_ms=10_000, order=ORDERED, payload_bytes=50)
    filler.fill_up_to(500)
    filler.make_instant()
    filler.fill_up_to(600)
    assert {entry.score for entry in queue.peek(600)} == {0}
    assert queue.transfer(600).moved == 600
    assert client.hlen(queue.keys.index) == 0


@pytest.mark.parametrize("caller", [our_way, redissons_way], ids=["ours", "Redisson's"])
def test_the_index_has_what_waits_whoever_transfers(
    client: redis.Redis, caller: Callable[[DelayedQueue], Caller]
) -> None:
    queue = DelayedQueue(client, "celery")
    filler = Filler(queue, first_due_ms=1, span_ms=10)
    for _ in range(3):
        filler.fill_up_to(250)
        assert queue.size() == client.hlen(queue.keys.index) == 250
        caller(queue).call()
        assert filler.forget_transferred() == 100
    assert client.hlen(queue.keys.index) == 150
    assert client.llen("celery") == 0


@pytest.mark.parametrize("variant", [STOCK, OURS])
def test_a_backlog_is_in_the_queue_in_one_instant(server: PrivateRedis, client: redis.Redis, variant: str) -> None:
    with BenchWorker(variant, server.port) as worker:
        copier = Copier(worker.app, client)
        copier.prepare(range(20))
        assert (client.llen("backlog"), worker.count()) == (20, 0)
        copier.release()
        wait_until(lambda: worker.count() == 20, "all have run", 30)


@pytest.mark.parametrize("variant", [STOCK, OURS])
def test_workers_run_copies_as_messages_of_celery(server: PrivateRedis, client: redis.Redis, variant: str) -> None:
    with BenchWorker(variant, server.port) as worker:
        copier = Copier(worker.app, client)
        copier.publish(range(5))
        copier.publish(range(5, 10), time.time() + 0.3)
        copier.publish(range(10, 12), time.time() + 0.2, time.time() + 0.4)
        wait_until(lambda: len(worker.runs()) == 12, "all have run", 30)
        runs = worker.runs()
    assert sorted(run.number for run in runs) == list(range(12))
    assert all(run.lateness_ms > 0 for run in runs if run.number >= 5)


def test_a_delayed_copy_waits_under_its_id(server: PrivateRedis, client: redis.Redis) -> None:
    app = make_app(broker_url(OURS, server.port))
    Copier(app, client).publish([7], time.time() + 3600)
    (task,) = app.delayq.scheduled(queue="celery").tasks
    assert task.args_text == "(7,)"
    assert app.delayq.cancel(task.id)
    app.close()
