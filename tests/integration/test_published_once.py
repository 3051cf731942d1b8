"""A publication that kombu or Celery repeats by itself, because its reply was lost, is stored once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain

from celery_delayq import DelayedQueue, Throttle, Unique
from celery_delayq.queue.call import load
from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.soak.proxy import Proxy
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("a proxy")

KEY = "remind:42"

#: Options of a task that is due at once or soon, and has a key or not.
OPTIONS: dict[str, dict[str, Any]] = {
    "immediate": {},
    "priority": {"priority": 3},
    "delayed": {"countdown": 0.001},
    "throttled": {"throttle": Throttle("1000/s")},
    "waiting": {"unique": KEY, "countdown": 0.001},
    **{
        f"{for_}, {conflict}, {countdown}": {
            "unique": Unique(key=KEY, for_=for_, on_conflict=conflict),
            "countdown": countdown,
        }
        for for_ in ("until_start", "until_done")
        for conflict in ("ignore", "replace")
        for countdown in (None, 0.001)
    },
    "period": {"unique": Unique(key=KEY, period=600)},
    "period, delayed": {"unique": Unique(key=KEY, period=600), "countdown": 0.001},
    "unique and throttled": {"unique": Unique(key=KEY, for_="until_done"), "throttle": Throttle("1000/s")},
}


@pytest.fixture
def proxy(redis_server: PrivateRedis) -> Iterator[Proxy]:
    proxy = Proxy(redis_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def direct(redis_server: PrivateRedis) -> Iterator[DelayedQueue]:
    """The delayed queue, without the proxy."""
    with redis_server.client() as client:
        client.flushdb()
        for name in ("publish", "offer", "offer_unique", "offer_throttled"):
            client.script_load(load(name).text)  # the first attempt does not fail for the lack of it
        yield DelayedQueue(client, "celery")
        client.flushdb()


@pytest.fixture
def app(proxy: Proxy, direct: DelayedQueue, ledger_url: str) -> Iterator[Celery]:
    with publisher(f"delayq://127.0.0.1:{proxy.port}/0", ledger_url) as app:
        yield app


def stored(queue: DelayedQueue) -> int:
    """How many messages there are, ready or waiting."""
    return queue.size() + sum(queue.client.llen(name) for name in ("celery", "celery\x06\x163"))


def run_all(app: Celery, queue: DelayedQueue) -> int:
    """Do what a worker would do with all that is ready or due. Return how many tasks it would have run."""
    wait_until(lambda: queue.transfer() and not queue.size(), "nothing waits")
    ready = stored(queue) - queue.size()
    app.delayq.forget(KEY)
    queue.client.delete("celery", "celery\x06\x163")
    return ready


def send(app: Celery, between: Callable[[], object], **options: Any) -> Any:
    """Send a task; call a function after its reply was lost, before it is sent again."""
    return app.tasks["note"].apply_async(
        retry_policy={"errback": lambda exc, interval: between(), "interval_start": 0, "interval_step": 0},
        task_id="the lost one",
        **options,
    )


def lose(app: Celery, proxy: Proxy) -> None:
    """Connect, and lose the reply to what comes next."""
    with app.connection_or_acquire() as connection:
        connection.default_channel.check_writable()
    proxy.loses = b"the lost one"


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_task_that_waits_or_is_ready(
    app: Celery, proxy: Proxy, direct: DelayedQueue, options: dict[str, Any]
) -> None:
    lose(app, proxy)
    seen: list[int] = []
    result = send(app, lambda: seen.append(stored(direct)), **options)
    assert seen == [1], "the first attempt stored it"
    assert stored(direct) == 1
    assert getattr(result, "was_new", True)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_task_that_has_run(app: Celery, proxy: Proxy, direct: DelayedQueue, options: dict[str, Any]) -> None:
    lose(app, proxy)
    ran: list[int] = []
    result = send(app, lambda: ran.append(run_all(app, direct)), **options)
    assert ran == [1]
    assert stored(direct) == 0
    assert getattr(result, "was_new", True)


@pytest.mark.parametrize("for_", ["waiting", "until_start", "until_done"])
@pytest.mark.parametrize("has_run", [True, False], ids=["it has run", "it was replaced"])
def test_a_newer_task_keeps_the_place_that_it_took(
    app: Celery, proxy: Proxy, direct: DelayedQueue, for_: Any, has_run: bool
) -> None:
    """What has run, or was replaced, takes nobody's place when it is sent again."""
    unique = Unique(key=KEY, for_=for_, on_conflict="replace")
    lose(app, proxy)
    newer: list[Any] = []

    def between() -> None:
        if has_run:
            assert run_all(app, direct) == 1
        newer.append(app.tasks["note"].apply_async(countdown=600, unique=unique))

    send(app, between, countdown=0.001 if has_run else 700, unique=unique)
    assert newer[0].was_new
    assert app.delayq.waiting(KEY).id == newer[0].id
    assert stored(direct) == 1


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_task_after_other_tasks(app: Celery, proxy: Proxy, direct: DelayedQueue, options: dict[str, Any]) -> None:
    """The same message may be sent again on purpose."""
    for _ in range(20):
        app.tasks["note"].delay()
    run_all(app, direct)
    send(app, lambda: None, **options)
    run_all(app, direct)
    send(app, lambda: None, **options)
    assert stored(direct) == 1


def test_the_next_task_of_a_chain(app: Celery, proxy: Proxy, direct: DelayedQueue, ledger: Ledger) -> None:
    """Celery publishes it in a worker, and tries again by itself."""
    note = app.tasks["note"]
    chain(note.si("first"), note.si("second").set(task_id="the lost one")).apply_async()
    proxy.loses = b'"id": "the lost one"'
    with Worker(broker=f"delayq://127.0.0.1:{proxy.port}/0", ledger=ledger.url, pool="solo"):
        wait_until(lambda: len(ledger.runs()) >= 2, "both have run")
        last = note.si("last").apply_async()
        wait_until(lambda: last.id in {run.task_id for run in ledger.runs()}, "what was published later has run")
    assert proxy.loses is None
    assert [run.note for run in ledger.runs()] == ["first", "second", "last"]


def test_connections_that_are_gone_leave_no_records(app: Celery, direct: DelayedQueue) -> None:
    """Without a pool, each publication has a connection, and there would be a record of each."""
    app.conf.broker_pool_limit = 0
    for _ in range(10):
        gc.collect()
        app.tasks["note"].delay()
    assert len(direct.client.keys("delayq:published:*")) < 5
