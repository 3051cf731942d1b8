"""FLUSHDB under a live worker takes what waits, and nothing that is sent afterwards."""

from __future__ import annotations

import kombu
import pytest
import redis
from celery import Celery
from redis.client import Pipeline

from celery_delayq.cluster.client import Routed
from tests.brokers import list_for
from tests.integration.long_tasks import in_flight, long_worker, message_of, node_of, open_gate, waits
from tests.ledger import Ledger
from tests.support import lasting_keys, wait_until

pytestmark = pytest.mark.on_cluster


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


def flush_and_send(client: redis.Redis, *messages: bytes) -> None:
    """Delete everything, and send these before anybody can notice: whoever waits for messages gets the first."""
    name = list_for(client, "celery")
    there = node_of(client, name)
    for node in [it.client for it in client.masters()] if isinstance(client, Routed) else [client]:
        with node.pipeline(transaction=True) as pipe:
            pipe.flushall()
            if node is there:
                pipe.lpush(name, *messages)
            pipe.execute()


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_every_task_that_is_sent_afterwards_runs_once(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str
) -> None:
    ids = []
    with long_worker(broker=broker_url, ledger=ledger, pool=pool, stops=True) as worker:
        for _ in range(3):
            made = [message_of(app, broker_client, "note") for _ in range(3)]
            wait_until(lambda: waits(broker_client, list_for(broker_client, "celery")), "it waits for messages")
            flush_and_send(broker_client, *(message for _, message in made))
            ids += [task_id for task_id, _ in made]
            wait_until(lambda ids=ids: ledger.has(ids), "they have run")
            wait_until(lambda: in_flight(broker_client) == 0, "they are acknowledged")
        assert worker.log.count("Connection to broker lost") == 0, "there was no need to connect again"
    assert sorted(run.task_id for run in ledger.runs()) == sorted(ids)
    assert [key for key in lasting_keys(broker_client) if key.startswith("delayq:")] == []


def test_what_a_worker_got_before_it_was_killed_runs_again(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    """The server knew that worker no longer, and the next one never saw it."""
    with long_worker(broker=broker_url, ledger=ledger) as worker:
        task_id, message = message_of(app, broker_client, "gated_late")
        wait_until(lambda: waits(broker_client, list_for(broker_client, "celery")), "it waits for messages")
        flush_and_send(broker_client, message)
        wait_until(lambda: ledger.has([task_id]), "it runs")
        worker.kill()
    for key in broker_client.scan_iter("delayq:consumers:*"):  # it may have joined again, if all was slow
        broker_client.delete(key)
    assert in_flight(broker_client) == 1
    open_gate(ledger)
    with long_worker(broker=broker_url, ledger=ledger):
        wait_until(lambda: in_flight(broker_client) == 0 and len(ledger.runs()) == 2, "it has run again")


def test_what_was_deleted_while_a_worker_had_it_does_not_begin(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    """What runs goes on, and the worker takes further tasks."""
    with long_worker(broker=broker_url, ledger=ledger, pool="prefork", concurrency=1, stops=True) as worker:
        first = app.send_task("gated")
        wait_until(lambda: ledger.has([first.id]), "the first runs")
        deleted = [app.send_task("note").id for _ in range(3)]
        wait_until(lambda: in_flight(broker_client) >= 2, "others are fetched")
        last, message = message_of(app, broker_client, "note")
        flush_and_send(broker_client, message)
        worker.wait_for_log("disappeared from Redis")
        open_gate(ledger)
        wait_until(lambda: ledger.has([last]), "the last has run")
        wait_until(lambda: in_flight(broker_client) == 0, "it is acknowledged")
    assert {run.task_id for run in ledger.runs()}.isdisjoint(deleted)


@pytest.mark.one_server("redis-py's pipeline")
@pytest.mark.skipif(kombu.VERSION < (5, 7), reason="before, kombu kept no bindings")
def test_scripts_that_are_flushed_just_before_bindings_are_kept_are_nothing_to_complain_about(
    app: Celery, broker_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """redis-py has looked whether the server knows them, and it is not told when they go."""
    load_scripts = Pipeline.load_scripts
    flushes = [broker_client.script_flush]

    def flush_after(pipe: Pipeline) -> None:
        load_scripts(pipe)
        while flushes:
            flushes.pop()()

    queue = kombu.Queue("told", kombu.Exchange("told"), routing_key="told", expires=60.0)
    with app.connection_for_read() as connection, connection.channel() as channel, kombu.Consumer(channel, [queue]):
        monkeypatch.setattr(Pipeline, "load_scripts", flush_after)
        for _ in range(2):
            channel.maybe_refresh_binding_expiry()
        assert not flushes
        deadlines = broker_client.zcard(channel.keyprefix_binding_deadlines)
    assert deadlines, "the second time, they are kept"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
