"""Everything that bounds or ends what a worker takes keeps its meaning; real workers."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import celery
import pytest
import redis
from celery import Celery, chord
from celery.exceptions import TimeoutError as ResultTimeout

from celery_delayq.queue.dead_letter import DELIVERY_LIMIT
from celery_delayq.queue.dead_letters import DeadLetters
from examples.private_redis import PrivateRedis
from tests.integration.long_tasks import (
    add_long_tasks,
    in_flight,
    long_worker,
    open_gate,
    task_ids,
)
from tests.integration.test_nothing_held import ask
from tests.ledger import ALL_WELL, Ledger
from tests.state import calls
from tests.support import lasting_keys, wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

#: Celery and its pool decide, whatever the broker is.
of_celery = pytest.mark.one_server("the broker does not decide it")

#: What each of them does is the same on a cluster.
one_is_enough = pytest.mark.one_server("it takes long, and runs in another form")

#: A lease as short as it may be.
SHORT = {"lease": 2}


@pytest.fixture(scope="module")
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    """An app to publish with, which has the long tasks too."""
    with publisher(broker_url, ledger_url) as app:
        yield add_long_tasks(app, Ledger(ledger_url))


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


@pytest.fixture
def start(broker_url: str, ledger: Ledger) -> Iterator[Any]:
    """Starts workers; at the end of the test the gate opens, and they stop."""
    with ExitStack() as stack:

        def start(*options: str, **kwargs: Any) -> Worker:
            return stack.enter_context(long_worker(*options, broker=broker_url, ledger=ledger, **kwargs))

        yield start
        open_gate(ledger)


def publish(app: Celery, count: int, name: str = "note", **options: Any) -> list[str]:
    """Publish tasks now; returns their ids."""
    return [app.tasks[name].apply_async(**options).id for _ in range(count)]


def ran(ledger: Ledger, ids: list[str], timeout: float = 30) -> None:
    """Wait until all tasks ran, and make sure that each ran once."""
    wait_until(lambda: ledger.has(ids), "all ran", timeout)
    assert ledger.verdict(dict.fromkeys(ids, 0.0)) == ALL_WELL


def is_idle(client: redis.Redis, *names: str) -> None:
    """Wait until nothing is on the lists, and nothing in flight."""
    names = names or ("celery",)
    wait_until(lambda: in_flight(client) == 0, "nothing is in flight")
    assert not client.exists(*names)


# -- how many


@pytest.mark.parametrize("priority", [0, 9])
@pytest.mark.parametrize(
    ("pool", "acks_late"), [pytest.param("solo", False, marks=one_is_enough), ("solo", True), ("prefork", True)]
)
def test_an_idle_worker_gets_the_next_task_while_the_first_works(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis, pool: str, acks_late: bool, priority: int
) -> None:
    conf = {"worker_prefetch_multiplier": 1, "task_acks_late": acks_late}
    for _ in range(2):
        start("-c1", pool=pool, concurrency=1, conf=conf)
    long = publish(app, 1, "gated")
    wait_until(lambda: ledger.has(long), "the long task runs")
    short = publish(app, 5, priority=priority)
    wait_until(lambda: ledger.has(short), "the others run meanwhile", 5)
    open_gate(ledger)
    ran(ledger, [*long, *short])
    is_idle(broker_client)


def test_a_backlog_does_not_wait_behind_a_long_task(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis
) -> None:
    long = publish(app, 1, "gated")
    short = [*publish(app, 10), *publish(app, 10, priority=6)]
    for _ in range(2):
        start("-c1", conf={"worker_prefetch_multiplier": 1, "task_acks_late": True})
    wait_until(lambda: ledger.has(short), "the others run meanwhile", 10)
    open_gate(ledger)
    ran(ledger, [*long, *short])
    is_idle(broker_client)


def test_a_multiplier_reserves_as_many_as_it_says(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis
) -> None:
    ids = publish(app, 30, "gated")
    start(pool="prefork", concurrency=2, conf={"worker_prefetch_multiplier": 3, "task_acks_late": True})
    wait_until(lambda: len(ledger.runs()) == 2, "both children work")
    wait_until(lambda: in_flight(broker_client) == 6, "six are in flight")
    assert len(ask(app, "active")) == 2
    assert len(ask(app, "reserved")) == 4
    assert task_ids(broker_client) == ids[6:]
    open_gate(ledger)
    ran(ledger, ids)
    is_idle(broker_client)


@pytest.mark.parametrize("acks_late", [pytest.param(False, marks=one_is_enough), True])
def test_a_busy_pool_takes_several_tasks_at_once(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis, acks_late: bool
) -> None:
    ids = publish(app, 400)
    broker_client.config_resetstat()
    start(pool="prefork", concurrency=2, conf={"worker_prefetch_multiplier": 6, "task_acks_late": acks_late})
    ran(ledger, ids)
    is_idle(broker_client)
    assert calls(broker_client, "evalsha") < len(ids) / 2


def test_multiplier_zero_takes_everything(app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis) -> None:
    start(pool="prefork", concurrency=1, conf={"worker_prefetch_multiplier": 0, "task_acks_late": True})
    ids = publish(app, 60, "gated")
    wait_until(lambda: in_flight(broker_client) == 60, "all are in flight")
    assert not broker_client.exists("celery")
    open_gate(ledger)
    ran(ledger, ids)
    is_idle(broker_client)


def test_disabled_prefetch_takes_a_task_only_for_an_idle_child(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis
) -> None:
    start(pool="prefork", concurrency=2, conf={"worker_disable_prefetch": True})
    ids = publish(app, 5, "gated")
    wait_until(lambda: len(ledger.runs()) == 2, "both children work")
    for _ in range(3):
        assert ask(app, "reserved") == []
        assert task_ids(broker_client) == ids[2:]
    start(pool="prefork", concurrency=1, conf={"worker_disable_prefetch": True})
    wait_until(lambda: len(ledger.runs()) == 3, "another worker takes the next")
    open_gate(ledger)
    ran(ledger, ids)
    is_idle(broker_client)


@of_celery
def test_autoscale(app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis) -> None:
    start("--autoscale=4,1", pool="prefork", concurrency=1, conf={"worker_prefetch_multiplier": 1})
    ids = publish(app, 40, "gated")
    wait_until(lambda: len({run.note for run in ledger.runs()}) == 4, "the pool has grown", 30)
    open_gate(ledger)
    ran(ledger, ids)
    is_idle(broker_client)


@of_celery
def test_the_pool_grows_and_shrinks(app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis) -> None:
    start(pool="prefork", concurrency=1, conf={"worker_prefetch_multiplier": 1, "task_acks_late": True})
    ids = publish(app, 5, "gated")
    wait_until(lambda: len(ledger.runs()) == 1, "one runs")
    app.control.pool_grow(2, reply=True)
    wait_until(lambda: len(ledger.runs()) == 3, "three run")
    assert task_ids(broker_client) == ids[3:]
    open_gate(ledger)
    ran(ledger, ids)
    is_idle(broker_client)  # a busy process cannot go
    app.control.pool_shrink(2, reply=True)
    wait_until(lambda: ask(app, "stats")["prefetch_count"] == 1, "fewer are taken")
    ledger.client.delete("gate")
    ids = publish(app, 3, "gated")
    wait_until(lambda: ledger.has(ids[:1]), "one runs")
    wait_until(lambda: task_ids(broker_client) == ids[1:], "the others wait")
    open_gate(ledger)
    wait_until(lambda: ledger.has(ids), "all ran")
    is_idle(broker_client)


@of_celery
def test_rate_limits_hold_nobody_else_up(app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis) -> None:
    start(pool="prefork", concurrency=2)
    begin = time.monotonic()
    slow = publish(app, 40, "limited")
    others = publish(app, 20)
    ran(ledger, [*slow, *others])
    assert time.monotonic() - begin > 1.5, "20 a second"
    is_idle(broker_client)


def test_consumers_come_and_go_under_load(app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis) -> None:
    start(pool="prefork", concurrency=2, conf={"worker_prefetch_multiplier": 8})
    assert ask(app, "ping") == {"ok": "pong"}, "it hears broadcasts, which kombu subscribes to a little later"
    ids = []
    for _ in range(6):
        ids += [*publish(app, 30, queue="extra"), *publish(app, 10)]
        assert app.control.add_consumer("extra", reply=True, limit=1, timeout=20)
        ids += publish(app, 30, queue="extra")
        assert app.control.cancel_consumer("extra", reply=True, limit=1, timeout=20)
        wait_until(lambda: in_flight(broker_client) == 0, "nothing stays in flight")
    ids += publish(app, 10, queue="extra")
    assert len(ask(app, "active_queues")) == 1
    assert broker_client.llen("extra") >= 10
    app.control.add_consumer("extra", reply=True)
    ran(ledger, ids)
    is_idle(broker_client, "celery", "extra")


def test_broadcasts_reach_a_worker_that_has_no_credit(app: Celery, ledger: Ledger, start: Any) -> None:
    start(pool="prefork", concurrency=1, conf={"worker_prefetch_multiplier": 1, "task_acks_late": True})
    publish(app, 3, "gated")
    wait_until(lambda: len(ledger.runs()) == 1, "one runs")
    for _ in range(3):
        assert ask(app, "ping") == {"ok": "pong"}


# -- shutdown


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("acks_late", [pytest.param(False, marks=one_is_enough), True])
def test_a_warm_shutdown_puts_back_in_order_what_has_not_begun(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis, pool: str, acks_late: bool
) -> None:
    ids = publish(app, 30, "gated")
    worker = start(pool=pool, concurrency=1, conf={"worker_prefetch_multiplier": 10, "task_acks_late": acks_late})
    wait_until(lambda: len(ledger.runs()) == 1 and in_flight(broker_client) >= 9, "one runs, others are reserved")
    worker.send_signal(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown")
    open_gate(ledger)
    assert worker.wait() == 0
    assert in_flight(broker_client) == 0, "at once"
    begun = [run.task_id for run in ledger.runs()]
    assert task_ids(broker_client) == [task_id for task_id in ids if task_id not in begun]
    start()
    ran(ledger, ids)
    is_idle(broker_client)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_cold_shutdown_loses_nothing(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis, pool: str
) -> None:
    ids = publish(app, 20, "gated")
    conf = {"worker_prefetch_multiplier": 10, "task_acks_late": True}
    worker = start(pool=pool, concurrency=1, conf=conf, transport=SHORT)
    wait_until(lambda: len(ledger.runs()) == 1, "one runs")
    if pool != "solo":
        wait_until(lambda: in_flight(broker_client) == 10, "others are reserved")
    worker.send_signal(signal.SIGQUIT)
    if pool == "threads":  # its threads cannot be killed, and Celery says so with an error
        wait_until(lambda: "Cold shutdown" in worker.log or "kill_job" in worker.log, "it shuts down")
        open_gate(ledger)
    if pool == "solo" and celery.VERSION < (5, 7):  # that error ends its task, and not the worker
        wait_until(lambda: "kill_job" in worker.log, "it tries to shut down")
        open_gate(ledger)
        worker.send_signal(signal.SIGTERM)
    worker.wait()
    begun = {run.task_id for run in ledger.runs()}
    open_gate(ledger)
    start(transport=SHORT)
    wait_until(lambda: ledger.has(ids), "all ran", 30)
    verdict = ledger.verdict(dict.fromkeys(ids, 0.0))
    assert (verdict.lost, verdict.early) == (set(), set())
    assert verdict.twice <= begun, "only what was running may run twice"
    is_idle(broker_client)


@pytest.mark.parametrize("pool", [pytest.param("solo", marks=one_is_enough), "prefork"])
def test_nothing_is_left_after_a_clean_stop(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis, pool: str
) -> None:
    worker = start(pool=pool, concurrency=2)
    ids = [*publish(app, 20), *publish(app, 5, priority=6), *publish(app, 5, countdown=0.3)]
    ran(ledger, ids)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    left = {key for key in lasting_keys(broker_client) if not key.startswith(("_kombu.", "{_kombu."))}
    assert left == {"delayq:queues"}
    assert broker_client.pubsub_channels("delayq:*") == []


# -- leases


@pytest.mark.parametrize("pool", [pytest.param("solo", marks=one_is_enough), "prefork"])
def test_a_task_that_takes_longer_than_the_lease_runs_once(
    app: Celery, ledger: Ledger, start: Any, broker_client: redis.Redis, pool: str
) -> None:
    for _ in range(2):
        start("-c1", pool=pool, concurrency=1, transport=SHORT)
    result = app.tasks["nap"].delay(6)
    result.get(timeout=30)
    is_idle(broker_client)
    ran(ledger, [result.id])


def test_a_worker_tells_by_what_the_visibility_timeout_is_replaced(app: Celery, ledger: Ledger, start: Any) -> None:
    worker = start(transport={"visibility_timeout": 3600, "lease": 7})
    worker.wait_for_log("Leases of 7 s, which running workers renew, replace visibility_timeout")
    assert app.tasks["note"].delay(1).get(timeout=20) == 1


@pytest.mark.one_server("no server is asked")
@pytest.mark.parametrize(
    ("transport", "complaint"),
    [
        ({"lease": 1}, "lease"),
        ({"lease": "long"}, "lease"),
        ({"delivery_limit": -1}, "delivery_limit"),
        ({"delivery_limits": 3}, "did you mean 'delivery_limit'"),
    ],
)
def test_a_worker_does_not_start_with_wrong_options(
    broker_url: str, ledger: Ledger, transport: dict[str, Any], complaint: str
) -> None:
    worker = long_worker(broker=broker_url, ledger=ledger, transport=transport)
    worker.start()
    try:
        assert worker.wait() != 0
        assert "ConfigurationError" in worker.log
        assert complaint in worker.log
    finally:
        worker.__exit__()


# -- dead letters


@pytest.fixture
def doomed(app: Celery, start: Any) -> Any:
    """Starts as many workers as a task may kill, and one more, and returns them.

    A limit of one takes two kills: nobody knows which task it was before it was alone.
    """

    def doomed(limit: int, **conf: Any) -> list[Worker]:
        transport = {"delivery_limit": limit, **SHORT}
        return [
            start("-c1", transport=transport, conf={"worker_prefetch_multiplier": 1, **conf})
            for _ in range(max(limit, 2) + 1)
        ]

    return doomed


def log_of_all(workers: list[Worker]) -> str:
    return "".join(worker.log for worker in workers)


@pytest.mark.one_server("it takes long; see tests/faults/test_poison.py")
def test_a_task_that_kills_its_workers_becomes_a_dead_letter(
    app: Celery, ledger: Ledger, doomed: Any, broker_client: redis.Redis
) -> None:
    doomed(3)
    begin_ms = time.time() * 1000
    result = app.tasks["kill_worker"].delay()
    with pytest.raises(Exception, match=r"DeliveryLimitReached|delivered 3 times"):
        result.get(timeout=40)
    assert result.state == "FAILURE"
    assert "DeliveryLimitReached" in repr(result.result) or "DeliveryLimitReached" in str(result.traceback)
    assert len({run.note for run in ledger.runs()}) == 3
    (letter,) = DeadLetters(broker_client, "celery")
    assert (letter.reason, letter.deliveries) == (DELIVERY_LIMIT, 3)
    assert begin_ms < letter.at.timestamp() * 1000 < time.time() * 1000 + 1000
    assert result.id.encode() in letter.message
    assert app.tasks["note"].delay(1).get(timeout=20) == 1, "one worker is alive"
    is_idle(broker_client)


@one_is_enough
def test_dead_letters_are_no_failures_if_the_app_says_so(app: Celery, doomed: Any, broker_client: redis.Redis) -> None:
    workers = doomed(1, delayq_fail_dead_letters=False)
    result = app.tasks["kill_worker"].delay()
    wait_until(lambda: "1 message of 'celery' became a dead letter in the list" in log_of_all(workers), "set aside", 20)
    assert app.tasks["note"].delay(1).get(timeout=20) == 1
    with pytest.raises(ResultTimeout):
        result.get(timeout=0.5)
    assert result.state == "PENDING"
    assert len(DeadLetters(broker_client, "celery")) == 1


def test_a_chord_fails_with_a_dead_letter(app: Celery, doomed: Any, broker_client: redis.Redis) -> None:
    doomed(1)
    header = [app.tasks["add"].s(1, 2), app.tasks["kill_worker"].s()]
    result = chord(header, app=app)(app.tasks["total"].s())
    wait_until(lambda: result.state == "FAILURE", "the body of the chord fails", 40)
    assert "without an acknowledgement" in repr(result.result)
    assert len(DeadLetters(broker_client, "celery")) == 1


# -- idle


_IDLE_S = 20.0


def client_commands(server: PrivateRedis, seconds: float) -> int:
    """How many commands clients send, those within scripts not counted."""
    with server.client() as client, server.client(socket_timeout=None) as listener, listener.monitor() as monitor:
        end = threading.Timer(seconds, client.echo, ("the end",))
        end.start()
        seen = list(itertools.takewhile(lambda command: "the end" not in command["command"], monitor.listen()))
        end.join()
    return sum(command["client_type"] != "lua" for command in seen)


@pytest.mark.one_server("a stock worker cannot use a cluster; see tests/benchmarks/test_cluster.py")
@pytest.mark.timeout(180)
def test_an_idle_worker_sends_hardly_more_commands_than_a_stock_one(ledger: Ledger) -> None:
    sent = {}
    for scheme, delayqs in (("redis", 0), ("delayq", 1)):
        with PrivateRedis() as server:
            url = f"{scheme}://127.0.0.1:{server.port}/0"
            with long_worker(broker=url, ledger=ledger, pool="prefork", concurrency=1, conf={"delayqs": delayqs}):
                client_commands(server, 3)
                sent[scheme] = client_commands(server, _IDLE_S)
    print(f"commands of an idle worker in {_IDLE_S:g} s: {sent}")
    assert 0 < sent["delayq"] <= 2 * sent["redis"] + 10
