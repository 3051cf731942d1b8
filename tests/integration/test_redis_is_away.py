"""Redis is away, or hangs: whoever publishes, or calls `DelayQ` with `timeout`, gets an OperationalError in time.

Other timeouts are so long here that whoever waits for them fails the test.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group
from celery.backends.redis import RedisBackend
from kombu import pools
from kombu.exceptions import OperationalError

from celery_delayq import DelayQ, NotAllSent
from celery_delayq.basics import deadline
from celery_delayq.inspector.away import NodesAway
from celery_delayq.schedule.api import Schedule
from celery_delayq.schedule.loop import PlannerLoop
from examples.private_cluster import free_port
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.brokers import Server
from tests.integration.certificates import Certificates
from tests.sentinel import MASTER_NAME, replicated
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

#: Longer than any test.
LONG_S = 600.0

EXPORTED = """\
{"format": "celery_delayq", "version": 1, "exported_at": "2030-01-01T00:00:00+00:00", "tasks": 1}
{"queue": "celery", "priority": 0, "due_ms": 1, "id": "a", "key": "00112233445566778899aabbccddeeff", "payload": "{}"}
{"end": 1}
"""

#: Headers of a chord.
HEADERS: dict[str, Callable[[Any], list[Any]]] = {
    "of one": lambda note: [note.s(1)],
    "of two": lambda note: [note.s(1), note.s(2)],
    "with a group": lambda note: [group(note.s(1), note.s(2)), note.s(3)],
}

#: Celery's patience with a result backend, 19 s by default.
ASKED_ONCE = {"result_backend_transport_options": {"retry_policy": {"max_retries": 0}}}

#: What the calls raise; `apply_async_many` and `change_some` tell what they have done before, if they have begun.
ERRORS = (OperationalError, NotAllSent, NodesAway)

#: One call of each method of `DelayQ` that talks to Redis; the entry is not there.
CALLS: dict[str, Callable[[Any], Any]] = {
    "get": lambda delayq: delayq.get("a", timeout=0.2),
    "waiting": lambda delayq: delayq.waiting("a", timeout=0.2),
    "forget": lambda delayq: delayq.forget("a", timeout=0.2),
    "cancel": lambda delayq: delayq.cancel(["a", "b"], timeout=timedelta(seconds=0.2)),
    "reschedule": lambda delayq: delayq.reschedule("a", countdown=1, timeout=0.2),
    "run_now": lambda delayq: delayq.run_now("a", timeout=0.2),
    "update": lambda delayq: delayq.update("a", args=(1,), timeout=0.2),
    "apply_async_many": lambda delayq: delayq.apply_async_many([delayq.app.tasks["note"].s()], timeout=0.2),
    "scheduled": lambda delayq: delayq.scheduled(timeout=0.2),
    "iter_scheduled": lambda delayq: list(delayq.iter_scheduled(timeout=0.2)),
    "cancel_all": lambda delayq: delayq.cancel_all(everything=True, timeout=0.2),
    "reschedule_all": lambda delayq: delayq.reschedule_all(countdown=60, everything=True, timeout=0.2),
    "run_now_all": lambda delayq: delayq.run_now_all(everything=True, timeout=0.2),
    "change_some": lambda delayq: delayq.change_some("cancel", everything=True, timeout=0.2).lost.check(),
    "counts": lambda delayq: delayq.counts(timeout=0.2),
    "histogram": lambda delayq: delayq.histogram(0, 60, 2, timeout=0.2),
    "history": lambda delayq: delayq.history(timeout=0.2),
    "consumers": lambda delayq: delayq.consumers(timeout=0.2),
    "pause": lambda delayq: delayq.pause("celery", timeout=0.2),
    "resume": lambda delayq: delayq.resume("celery", timeout=0.2),
    "paused": lambda delayq: delayq.paused(timeout=0.2),
    "dead": lambda delayq: delayq.dead(timeout=0.2),
    "requeue_dead": lambda delayq: delayq.requeue_dead(everything=True, timeout=0.2),
    "purge_dead": lambda delayq: delayq.purge_dead(everything=True, timeout=0.2),
    "export": lambda delayq: delayq.export(os.devnull, timeout=0.2),
    "import_": lambda delayq: delayq.import_(io.StringIO(EXPORTED), timeout=0.2),
    "release": lambda delayq: delayq.release(timeout=0.2),
    "schedule.add": lambda delayq: delayq.schedule.add("a", "note", 60, timeout=0.2),
    "schedule.update": lambda delayq: delayq.schedule.update("a", schedule=60, timeout=0.2),
    "schedule.remove": lambda delayq: delayq.schedule.remove("a", timeout=0.2),
    "schedule.pause": lambda delayq: delayq.schedule.pause("a", timeout=0.2),
    "schedule.resume": lambda delayq: delayq.schedule.resume("a", timeout=0.2),
    "schedule.run_now": lambda delayq: delayq.schedule.run_now("a", timeout=0.2),
    "schedule.get": lambda delayq: delayq.schedule.get("a", timeout=0.2),
    "schedule.next_runs": lambda delayq: delayq.schedule.next_runs("a", timeout=0.2),
}


@contextmanager
def shop(url: str, results: str | None = None, **conf: Any) -> Iterator[Any]:
    """An app in which nothing is connected yet."""
    pools.reset()
    app = Celery("shop", broker=url, backend=results, set_as_current=False)
    app.conf.update(conf)
    app.conf.broker_transport_options = {"socket_timeout": LONG_S, **app.conf.broker_transport_options}
    app.delayq = DelayQ(app)

    @app.task(name="note", lazy=False, shared=False)
    def note(value: Any = None) -> Any:
        return value

    try:
        yield app
    finally:
        app.close()


def processes(server: Server) -> list[int]:
    return [server.pid] if isinstance(server, PrivateRedis) else [node.pid for node in server.cluster.nodes]


@contextmanager
def hanging(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def results_at(kind: str, url: str) -> str | None:
    return {"none": None, "delayq": url, "redis": url.replace("delayq://", "redis://")}[kind]


REDIS = pytest.param("redis", marks=pytest.mark.one_server("Celery's own backend knows no cluster"))


@pytest.fixture(params=["none", "delayq", REDIS])
def results(request: pytest.FixtureRequest) -> str:
    """Where results are: nowhere, or at the broker's server, by our URL or by Celery's own."""
    return str(request.param)


@pytest.fixture(params=["cold", "warm"])
def is_warm(request: pytest.FixtureRequest) -> bool:
    """Whether the process is connected when Redis hangs."""
    return bool(request.param == "warm")


def test_publishing_fails_if_redis_hangs(
    broker_server: Server, broker_url: str, waiting: Any, results: str, is_warm: bool
) -> None:
    options = {"broker_transport_options": {"socket_timeout": 0.3}}
    with shop(broker_url, results_at(results, broker_url), **options) as app:
        note = app.tasks["note"]
        kept = [note.apply_async(countdown=600)] if is_warm else []
        with hanging(*processes(broker_server)):
            for countdown in (None, 600):
                with pytest.raises(OperationalError):
                    note.apply_async(countdown=countdown, retry_policy={"max_retries": 0})
            with pytest.raises(OperationalError):
                group([note.s(), note.s()]).apply_async(retry_policy={"max_retries": 0})
            kept.clear()  # results that are collected ask nothing of Redis


def test_publishing_fails_at_once_if_redis_is_away(results: str, is_warm: bool) -> None:
    with PrivateRedis() as server:
        url = brokers.url_of(server)
        with shop(url, results_at(results, url)) as app:
            note = app.tasks["note"]
            kept = [note.apply_async(countdown=600)] if is_warm else []
            server.kill()
            for countdown in (None, 600):
                with pytest.raises(OperationalError, match=r"refused|closed|reset"):
                    note.apply_async(countdown=countdown, retry_policy={"max_retries": 0})
            kept.clear()


def test_publishing_fails_at_once_if_a_cluster_is_away() -> None:
    url = f"delayq+cluster://127.0.0.1:{free_port()}"
    with shop(url, url) as app, pytest.raises(OperationalError, match="refused"):
        app.tasks["note"].apply_async(retry_policy={"max_retries": 0})


@contextmanager
def chords(kind: str, results_url: str, **conf: Any) -> Iterator[tuple[Any, PrivateRedis]]:
    """An app whose results are at another server than its broker, which is there."""
    once: dict[str, Any] = {"task_publish_retry_policy": {"max_retries": 0}}
    with PrivateRedis() as broker, shop(brokers.url_of(broker), results_at(kind, results_url), **once | conf) as app:
        yield app, broker


def is_empty(broker: PrivateRedis) -> bool:
    with broker.client() as client:
        return not client.exists("celery")


@pytest.mark.parametrize("kind", ["delayq", REDIS])
@pytest.mark.parametrize("header", HEADERS)
def test_a_chord_fails_if_its_results_hang(
    broker_server: Server, broker_url: str, waiting: Any, kind: str, is_warm: bool, header: str
) -> None:
    with chords(kind, broker_url, broker_transport_options={"socket_timeout": 0.3}) as (app, broker):
        if is_warm:
            app.backend.get("a")
        with hanging(*processes(broker_server)), pytest.raises(OperationalError):
            chord(HEADERS[header](app.tasks["note"]), app.tasks["note"].s()).apply_async()
        assert is_empty(broker)


@pytest.mark.parametrize("kind", ["delayq", REDIS])
def test_a_chord_is_sent_within_its_timeout_or_not_at_all(
    broker_server: Server, broker_url: str, waiting: Any, kind: str, is_warm: bool
) -> None:
    with chords(kind, broker_url, task_publish_retry_policy={"max_retries": None}) as (app, broker):
        note = app.tasks["note"]
        if is_warm:
            app.backend.get("a")
        with hanging(*processes(broker_server)), pytest.raises(OperationalError):
            asyncio.run(app.delayq.asend(chord([note.s(1), note.s(2)], note.s()), timeout=0.2))
        assert is_empty(broker)


def test_a_chord_with_a_timeout_is_sent(broker_url: str, waiting: Any) -> None:
    with shop(broker_url, "cache+memory://") as app:
        note = app.tasks["note"]
        sent = chord([note.s(number).set(countdown=60) for number in (1, 2)], note.s())
        asyncio.run(app.delayq.asend(sent, timeout=30, retry_policy={"max_retries": 1}))
        assert len(app.delayq.scheduled(task="note")) == 2


@pytest.mark.parametrize("kind", ["delayq", "redis"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_chord_fails_at_once_if_its_results_are_away(kind: str, is_warm: bool, header: str) -> None:
    with PrivateRedis() as server, chords(kind, brokers.url_of(server)) as (app, broker):
        if is_warm:
            app.backend.get("a")
        server.kill()
        with pytest.raises(OperationalError, match=r"refused|closed|reset"):
            chord(HEADERS[header](app.tasks["note"]), app.tasks["note"].s()).apply_async()
        assert is_empty(broker)


def test_a_chord_fails_at_once_if_a_cluster_with_its_results_is_away() -> None:
    with chords("delayq", f"delayq+cluster://127.0.0.1:{free_port()}") as (app, broker):
        note = app.tasks["note"]
        with pytest.raises(OperationalError, match="refused"):
            chord([note.s(1)], note.s()).apply_async()
        assert is_empty(broker)


def test_a_chord_is_tried_again_as_its_tasks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"task_publish_retry_policy": {"max_retries": 1, "interval_start": 0.5}, **ASKED_ONCE}
    with PrivateRedis() as server, chords("redis", brokers.url_of(server), **options) as (app, _):
        note = app.tasks["note"]
        server.kill()
        monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: server.start())
        result = chord([note.s(1), note.s(2)], note.s()).apply_async()
        assert len(app.delayq.scheduled(state="ready")) == 2
        assert not result.ready()


def test_a_chord_is_not_tried_again_if_publishing_is_not() -> None:
    policy = {"max_retries": None}
    options: dict[str, Any] = {"task_publish_retry": False, "task_publish_retry_policy": policy}
    with chords("redis", f"delayq://127.0.0.1:{free_port()}", **options) as (app, _), pytest.raises(OperationalError):
        chord([app.tasks["note"].s(1)], app.tasks["note"].s()).apply_async()


def test_a_task_of_a_worker_waits_for_its_chords_as_long_as_celery() -> None:
    """The options of its result backend say how long, not those of publishing."""
    options: dict[str, Any] = {"task_publish_retry_policy": {"max_retries": None}, **ASKED_ONCE}
    with chords("redis", f"delayq://127.0.0.1:{free_port()}", **options) as (app, _):
        note = app.tasks["note"]

        @app.task(name="send", lazy=False, shared=False)
        def send() -> None:
            chord([note.s(1)], note.s()).apply_async()

        with pytest.raises(RuntimeError, match="Retry limit exceeded"):
            send.apply(throw=True)


def test_a_backend_that_was_there_before_does_the_same() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with PrivateRedis() as broker:
        app = Celery("shop", broker=brokers.url_of(broker), backend=url, set_as_current=False)
        app.conf.task_publish_retry_policy = {"max_retries": 0}
        assert app.backend
        DelayQ(app)
        with pytest.raises(OperationalError, match="refused"):
            chord([app.signature("note")], app.signature("note")).apply_async()
        app.close()


class WithItsOwnClient(RedisBackend):
    """A backend as apps have them."""

    def _create_client(self, **params: Any) -> redis.Redis:
        params.pop("retry_on_timeout")  # which redis-py warns of
        return redis.Redis(**params)


def test_a_backend_that_makes_its_own_client_works(broker_url: str, waiting: Any) -> None:
    name = f"{__name__}:{WithItsOwnClient.__name__}"
    with PrivateRedis() as server, shop(broker_url, name, redis_port=server.port) as app:
        assert app.backend.get("a") is None


def test_a_task_that_is_sent_subscribes_to_nothing(broker_client: Any, broker_url: str, waiting: Any) -> None:
    with shop(broker_url, broker_url) as app:
        results = [app.tasks["note"].apply_async(), *app.delayq.apply_async_many([app.tasks["note"].s()] * 3)]
        assert broker_client.pubsub_channels("celery-task-meta-*") == []
        app.backend.store_result(results[0].id, 42, "SUCCESS")
        assert results[0].get(timeout=10) == 42


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_if_redis_hangs(broker_server: Server, broker_url: str, is_warm: bool, name: str) -> None:
    with shop(broker_url) as app:
        if is_warm:
            app.delayq.get("a")
        with hanging(*processes(broker_server)), pytest.raises(ERRORS):
            CALLS[name](app.delayq)
        assert app.delayq.get("a") is None


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_a_check_that_ends_in_time_has_found_it(broker_server: Server, broker_url: str, is_warm: bool) -> None:
    with shop(broker_url) as app:
        if is_warm:
            app.delayq.get("a")
        with hanging(*processes(broker_server)):
            findings = app.delayq.check(timeout=0.2)
        assert {it.check for it in findings if it.level == "error"} == {"server"}


def test_every_method_takes_a_timeout() -> None:
    """But those that do not talk to Redis."""
    others = {"was_new"}
    methods = {name: method for name, method in inspect.getmembers(DelayQ, inspect.isfunction) if name[0] != "_"}
    assert {name for name, it in methods.items() if "timeout" not in inspect.signature(it).parameters} == others
    of_schedule = inspect.getmembers(Schedule, inspect.isfunction)
    assert all("timeout" in inspect.signature(it).parameters for name, it in of_schedule if name[0] != "_")


def test_a_call_does_not_wait_between_attempts_for_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_wait(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr("kombu.utils.functional.sleep", refuse_to_wait)
    with shop(f"delayq://127.0.0.1:{free_port()}/0") as app, pytest.raises(OperationalError, match="refused"):
        app.delayq.get("a", timeout=1.5)


def test_a_call_does_not_wait_for_a_connection_of_the_pool(broker_url: str) -> None:
    is_refused = pytest.raises(OperationalError, match="broker_pool_limit")
    with shop(broker_url, broker_pool_limit=1) as app, app.connection_or_acquire(), is_refused:
        app.delayq.get("a", timeout=0.2)


@pytest.mark.parametrize("kind", ["task", "name", "signature", "group", "chain", "chord"])
def test_nor_does_a_coroutine_that_sends(broker_url: str, kind: str) -> None:
    with shop(broker_url, broker_pool_limit=1) as app, app.connection_or_acquire():
        note = app.tasks["note"]
        several = {"group": group, "chain": chain, "chord": lambda *them: chord(them, note.s())}
        task: Any = {"task": note, "name": "note", "signature": note.s(1)}.get(kind)
        task = several[kind](note.si(1), note.si(2)) if task is None else task
        with pytest.raises(OperationalError, match="broker_pool_limit"):
            asyncio.run(app.delayq.asend(task, timeout=0.2))


def test_later_calls_may_take_longer(broker_client: Any, broker_url: str) -> None:
    with shop(broker_url) as app:
        for _ in range(2):  # the first one connects
            assert app.delayq.get("a", timeout=0.5) is None
        broker_client.client_pause(1000)
        assert app.delayq.get("a") is None


def test_a_loop_that_a_call_starts_has_no_timeout() -> None:
    has_timeout: list[bool] = []

    @contextmanager
    def connect() -> Iterator[Any]:
        has_timeout.append(deadline.is_set())
        raise redis.ConnectionError("it is away")
        yield

    loop = PlannerLoop(connect)
    with deadline.within(600):
        loop.start()
    wait_until(lambda: has_timeout, "it connects")
    loop.stop()
    assert not has_timeout[0]


@pytest.mark.parametrize("timeout", [0, -1, timedelta(0), float("nan"), "1"])
def test_a_timeout_is_a_span_above_0(broker_url: str, timeout: Any) -> None:
    with shop(broker_url) as app, pytest.raises((TypeError, ValueError), match="timeout must be"):
        app.delayq.get("a", timeout=timeout)


@pytest.mark.one_server("Sentinel watches single servers")
def test_sentinels_and_their_master_hang(tmp_path: Path, is_warm: bool) -> None:
    with replicated(tmp_path) as servers:
        options = {"master_name": MASTER_NAME, "sentinel_kwargs": {"socket_timeout": LONG_S}}
        with shop(servers.url, broker_transport_options=options) as app:
            if is_warm:
                app.delayq.get("a")
            pids = [one.pid for one in (servers.master, servers.replica, servers.sentinel)]
            with hanging(*pids), pytest.raises(OperationalError):
                app.delayq.get("a", timeout=0.2)
            with hanging(pids[0]), pytest.raises(OperationalError):
                app.delayq.get("a", timeout=0.2)


@pytest.mark.one_server("the same connections")
def test_a_server_hangs_that_speaks_tls(tmp_path: Path) -> None:
    certificates, port = Certificates(tmp_path), free_port()
    with PrivateRedis(*certificates.redis_options(port), server=certificates.server()) as server:
        tls = {"ssl_ca_certs": str(certificates.authority)}
        with shop(f"delayqs://127.0.0.1:{port}/0", broker_use_ssl=tls) as app:
            with hanging(server.pid), pytest.raises(OperationalError):
                app.delayq.get("a", timeout=0.2)
            assert app.delayq.get("a") is None
