"""A Redis that goes away and comes back costs time, never a task."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from celery_delayq import DeadLetters
from celery_delayq.queue.keys import QueueKeys
from tests.brokers import ClusterServer, Server, url_of
from tests.ledger import ALL_WELL, Ledger
from tests.state import FAR
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

GONE = "Transfer of delayed messages interrupted"
BACK = "Transfer of delayed messages: connected"
KEYS = QueueKeys.of("celery")


@pytest.fixture
def app(broker_url: str, ledger: Ledger) -> Iterator[Celery]:
    with publisher(broker_url, ledger.url) as app:
        yield app


@pytest.fixture
def worker(broker_url: str, ledger: Ledger) -> Iterator[Worker]:
    with Worker(pool="prefork", broker=broker_url, ledger=ledger.url) as worker:
        yield worker


@pytest.fixture
def client(broker: Server) -> Iterator[redis.Redis]:
    with broker.client() as client:
        yield client


def schedule(app: Celery, countdowns: list[float]) -> dict[str, float]:
    """Publish a task for each countdown; return when each is due, in ms."""
    start = time.time()
    tasks = ((app.tasks["note"].apply_async(countdown=s), s) for s in countdowns)
    return {result.id: (start + countdown) * 1000 for result, countdown in tasks}


def servers(broker: Server) -> int:
    """How many servers have queues: each has a transfer loop."""
    return len(broker.cluster.nodes) if isinstance(broker, ClusterServer) else 1


def listening(client: redis.Redis) -> bool:
    """Whether a loop is subscribed."""
    return bool(client.pubsub_numsub(KEYS.channel)[0][1])


@pytest.mark.parametrize("crash", [False, True], ids=["restarted", "killed"])
def test_a_server_that_restarts_with_tasks_pending(
    broker: Server,
    client: redis.Redis,
    app: Celery,
    worker: Worker,
    ledger: Ledger,
    crash: bool,
) -> None:
    """Some become due while it is away, some after it is back; new ones come too."""
    promised = schedule(app, [0.2] + [2 + n / 20 for n in range(60)] + [6.0])
    wait_until(lambda: len(ledger.runs()) == 1, "the first ran, and nothing else is due")
    wait_until(lambda: not client.exists("unacked"), "it is acknowledged")
    if crash:
        broker.kill()
    else:
        broker.stop()
    worker.wait_for_log("lost", timeout=10)  # "Connection to broker lost", "Redis node ... is lost"
    wait_until(lambda: time.time() * 1000 > min(list(promised.values())[1:]) + 500, "some are due")
    broker.start()
    with publisher(url_of(broker), ledger.url) as new_app:
        promised |= schedule(new_app, [0.3] * 5)
        wait_until(lambda: ledger.has(promised), "all ran", 40)
    assert ledger.verdict(promised) == ALL_WELL
    assert worker.log.count(GONE) <= servers(broker)


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
def test_connections_that_are_killed(
    client: redis.Redis, app: Celery, worker: Worker, ledger: Ledger, kind: str
) -> None:
    promised = schedule(app, [0.2])
    wait_until(lambda: len(ledger.runs()) == 1, "the first ran")
    wait_until(lambda: not client.exists("unacked"), "it is acknowledged")
    promised |= schedule(app, [1.5 + n / 20 for n in range(40)])
    assert client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes") > 0
    wait_until(lambda: listening(client), "the loop listens again", 20)
    promised |= schedule(app, [0.5] * 5)
    wait_until(lambda: ledger.has(promised), "all ran", 30)
    assert ledger.verdict(promised) == ALL_WELL


@pytest.mark.one_server("it looks for the connection of one loop")
def test_a_loop_that_loses_its_connection_says_so_once_and_once_that_it_is_back(
    client: redis.Redis, app: Celery, worker: Worker, ledger: Ledger
) -> None:
    wait_until(lambda: listening(client), "the loop listens")
    worker.wait_for_log(BACK)
    wait_until(lambda: client.info("clients")["tracking_clients"] == 1, "it listens for rarely used lists")
    before = worker.log
    # Others: kombu's, with patterns only. The keeper's also hears of lists that are written to.
    (keeper,) = {it["redir"] for it in client.client_list()} - {"-1", "0"}
    client.client_kill_filter(_id=keeper)
    worker.wait_for_log(GONE)
    worker.wait_for_log(BACK, times=before.count(BACK) + 1)
    schedule(app, [0.2])
    wait_until(lambda: len(ledger.runs()) == 1, "it works again", 20)
    assert worker.log.count(GONE) == 1
    assert worker.log.count(BACK) == before.count(BACK) + 1
    assert "Traceback" not in worker.log


def test_a_server_that_hangs_for_a_while(client: redis.Redis, app: Celery, worker: Worker, ledger: Ledger) -> None:
    promised = schedule(app, [0.3 + n / 20 for n in range(40)])
    client.client_pause(1500)
    wait_until(lambda: ledger.has(promised), "all ran", 30)
    assert ledger.verdict(promised) == ALL_WELL


def test_scripts_that_are_forgotten(client: redis.Redis, app: Celery, worker: Worker, ledger: Ledger) -> None:
    promised = schedule(app, [0.5 + n / 20 for n in range(40)])
    for count in (1, 10, 20, 30):
        wait_until(lambda count=count: len(ledger.runs()) >= count, "some ran", 20)
        client.script_flush()
        promised |= schedule(app, [0.3])
    wait_until(lambda: ledger.has(promised), "all ran", 20)
    assert ledger.verdict(promised) == ALL_WELL
    assert GONE not in worker.log


def test_a_lost_notification_costs_one_interval(
    broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger
) -> None:
    """The offer is made without its notification: the loop finds the task when it looks by itself."""
    conf = {"delayq_transfer_interval": 0.5}
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf):
        wait_until(lambda: listening(client), "the loop listens")
        app.tasks["note"].apply_async(countdown=3600, task_id="quiet")
        (entry,) = client.zrange(KEYS.timeout_set, 0, -1)
        client.zadd(KEYS.timeout_set, {entry: int(time.time() * 1000) + 100})
        wait_until(lambda: ledger.has(["quiet"]), "it ran", 20)


def test_an_entry_that_cannot_be_decoded_stops_nobody(
    client: redis.Redis, app: Celery, worker: Worker, ledger: Ledger
) -> None:
    client.zadd(KEYS.timeout_set, {b"garbage": int(time.time() * 1000) + 500, b"": 1})
    promised = schedule(app, [0.3, 0.5, 0.7])
    wait_until(lambda: ledger.has(promised), "all ran", 20)
    wait_until(lambda: client.zcard(KEYS.dead) == 2, "they are set aside")
    assert {letter.message for letter in DeadLetters(client, "celery")} == {b"garbage", b""}
    assert ledger.verdict(promised) == ALL_WELL
    worker.wait_for_log("became dead letters in the list 'delayq:dead:{celery}'")
    assert "ERROR" in worker.log


def test_a_queue_that_the_server_refuses_stops_no_other_and_is_said_once(
    client: redis.Redis, app: Celery, worker: Worker, ledger: Ledger
) -> None:
    client.zadd("redisson_delay_queue_timeout:{broken}", {b"\x00" + bytes(8): 1})
    client.set("broken", "not a list")
    client.zadd("delayq:queues", {"broken": FAR})
    client.publish("delayq:queues", "broken")
    worker.wait_for_log("Cannot transfer delayed messages of 'broken'")
    assert app.control.add_consumer("another", reply=True, timeout=10), "its loops subscribe again"
    promised = [*schedule(app, [0.2] * 3)]
    promised.append(app.tasks["note"].apply_async(countdown=0.2, queue="another").id)
    wait_until(lambda: ledger.has(promised), "the others ran", 20)
    assert worker.log.count("Cannot transfer delayed messages of 'broken'") == 1


def test_a_server_that_lost_everything_knows_the_queues_of_new_tasks(client: redis.Redis, app: Celery) -> None:
    """As after a restart without persistence, which connections survive without noticing."""
    app.tasks["note"].apply_async(countdown=3600)
    client.flushall()
    result = app.tasks["note"].apply_async(countdown=3600)
    assert app.delayq.cancel(result.id) is True
