"""A task that kills its workers becomes a dead letter, and no other one with it."""

from __future__ import annotations

import pytest
import redis

from celery_delayq import DeadLetters
from celery_delayq.queue.dead_letter import DELIVERY_LIMIT
from celery_delayq.transport.redelivery import ALONE, DELIVERY_COUNT
from tests.brokers import Server
from tests.conftest import nothing_astray
from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.integration.test_lost_connection import wait_for_loss
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher

__all__ = ["nothing_astray"]

pytestmark = pytest.mark.on_cluster

HARMLESS = 12


@pytest.fixture
def broker(steady_broker: Server) -> Server:
    """Workers are killed, the broker is not."""
    return steady_broker


@pytest.mark.parametrize(("pool", "limit"), [("prefork", 3), ("threads", 2)])
def test_a_poison_among_harmless_tasks_dies_alone(
    broker: Server, broker_url: str, ledger: Ledger, pool: str, limit: int
) -> None:
    """With one worker, which its supervisor starts again each time."""
    options = {"delivery_limit": limit, "lease": 2}
    conf = {"worker_prefetch_multiplier": 2}
    with publisher(broker_url, ledger.url) as app, broker.client() as client:
        app.tasks["note"].delay("first").forget()
        doomed = app.send_task("poison").id
        harmless = {app.send_task("nap", (0.05,)).id for _ in range(HARMLESS)}
        letters = DeadLetters(client, "celery")
        starts = 0
        while not letters:
            starts += 1
            assert starts < 12, f"{len(letters)} dead letters, ran: {ledger.runs()}"
            with long_worker(
                broker=broker_url, ledger=ledger, pool=pool, concurrency=2, transport=options, conf=conf
            ) as worker:
                wait_until(lambda: letters or worker.has_ended, "the poison is fetched, or is dead", 30)
                if letters:
                    wait_until(lambda: in_flight(client) == 0 and not client.llen("celery"), "all is done", 30)
        assert [(letter.reason, doomed.encode() in letter.message) for letter in letters] == [(DELIVERY_LIMIT, True)]
    runs = [run.task_id for run in ledger.runs()]
    assert runs.count(doomed) == limit
    assert harmless <= set(runs)


def test_the_last_delivery_waits_for_what_runs_although_the_connection_was_lost(
    broker: Server, broker_url: str, ledger: Ledger
) -> None:
    options = {"delivery_limit": 3}
    with (
        publisher(broker_url, ledger.url) as app,
        broker.client() as client,
        long_worker(broker=broker_url, ledger=ledger, pool="threads", transport=options) as worker,
    ):
        runs = app.send_task("gated").id
        wait_until(lambda: ledger.has([runs]), "it runs")
        client.client_kill_filter(_type="normal", skipme=True)
        wait_for_loss(worker, client)
        suspect = app.send_task("gated_late", headers={DELIVERY_COUNT: 2}).id
        # It goes back for a second, so that an idle worker can take it. Then the worker keeps it until nothing runs.
        wait_until(lambda: is_kept(client) or ledger.has([suspect]), "it is kept")
        assert not is_alone(client)
        assert not ledger.has([suspect])
        open_gate(ledger)
        wait_until(lambda: in_flight(client) == 0 and ledger.has([suspect]), "it has run")


def test_a_task_that_begins_beside_the_last_delivery_of_another_acquits_it(
    broker: Server, broker_url: str, ledger: Ledger
) -> None:
    """It was held before, for its rate limit: if the worker dies now, nobody knows which of them did it."""
    conf = {"task_annotations": {"note": {"rate_limit": "20/m"}}}
    options = {"delivery_limit": 3}
    with (
        publisher(broker_url, ledger.url) as app,
        broker.client() as client,
        long_worker(broker=broker_url, ledger=ledger, pool="threads", transport=options, conf=conf),
    ):
        for number in range(3):
            app.send_task("note", (number,)).forget()
        wait_until(lambda: len(ledger.runs()) == 1 and in_flight(client) == 2, "one runs, two wait", 20)
        suspect = app.send_task("gated_late", headers={DELIVERY_COUNT: 2}).id
        wait_until(lambda: is_alone(client), "it is delivered alone", 20)
        wait_until(lambda: len(ledger.runs()) == 3, "another one begins", 20)
        assert {run.task_id for run in ledger.runs()} >= {suspect}
        wait_until(lambda: not is_alone(client), "it is not alone any more")
        open_gate(ledger)
        wait_until(lambda: in_flight(client) == 0 and len(ledger.runs()) == 4, "all are done", 20)


def is_kept(client: redis.Redis) -> bool:
    """Whether there is a message in flight with which nothing was done for two seconds."""
    return any((client.object("idletime", key) or 0) >= 2 for key in client.scan_iter("delayq:inflight:*"))


def is_alone(client: redis.Redis) -> bool:
    """Whether a message in flight has the mark."""
    messages = [raw for key in client.scan_iter("delayq:inflight:*") for raw in client.lrange(key, 0, -1)]
    return any(ALONE.encode() in raw for raw in messages)
