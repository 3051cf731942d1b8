"""private_broker: an app gets a private server, and is then as it was."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import DelayQTester, private_broker
from celery_delayq.testing.private_redis import PrivateRedis
from tests.support import wait_until

NOWHERE = "delayq://nowhere.invalid:1/0"


def make(**conf: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    return app


def where(app: Celery) -> tuple[Any, ...]:
    """Where an app finds its broker and its results."""
    with app.connection_for_read() as reading, app.connection_for_write() as writing:
        return reading.as_uri(), writing.as_uri(), app.conf.result_backend, app.backend.as_uri()


#: Configurations of production, none of which is a reason to leave the private server.
PRODUCTION = {
    "redis": {"broker_url": "redis://nowhere.invalid:1/3", "result_backend": "redis://nowhere.invalid:1/4"},
    "other urls": {"broker_read_url": NOWHERE, "broker_write_url": NOWHERE, "result_backend": NOWHERE},
    "sentinel": {
        "broker_url": "delayq+sentinel://nowhere.invalid:1/0",
        "broker_transport_options": {"master_name": "mymaster", "sentinel_kwargs": {"password": "secret"}},
        "result_backend": "delayq+sentinel://nowhere.invalid:1/0",
        "result_backend_transport_options": {"master_name": "mymaster"},
    },
    "cluster": {"broker_url": "delayq+cluster://nowhere.invalid:1", "result_backend": "delayq+cluster://a.invalid:1"},
    "tls": {
        "broker_url": "delayqs://nowhere.invalid:1/0",
        "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED},
        "result_backend": "rediss://nowhere.invalid:1/0",
        "redis_backend_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED},
    },
    "replicas": {"broker_url": NOWHERE, "broker_transport_options": {"replicas": 2}},
    "prefix": {"broker_url": NOWHERE, "broker_transport_options": {"global_keyprefix": "shop:"}},
    "transport": {"broker_url": "redis://nowhere.invalid:1", "broker_transport": "celery_delayq.transport:Transport"},
    "eager": {"broker_url": "memory://", "task_always_eager": True},
    "one connection": {"broker_url": NOWHERE, "broker_pool_limit": 1},
    "no pool": {"broker_url": NOWHERE, "broker_pool_limit": None},
}


@pytest.mark.parametrize("conf", PRODUCTION.values(), ids=list(PRODUCTION))
def test_tasks_wait_and_run_there_whatever_the_configuration(redis_server: PrivateRedis, conf: dict[str, Any]) -> None:
    app = make(**conf)
    ran = []

    @app.task(name="note", shared=False)
    def note(value: Any) -> Any:
        ran.append(value)
        if value:
            note.apply_async((value - 1,), countdown=60)
        return value

    before = {name: app.conf.get(name) for name in (*conf, "broker_url", "result_backend")}
    with private_broker(app, redis_server):
        delayq = DelayQTester(app)
        result = note.apply_async((1,), countdown=60)
        delayq.assert_scheduled(note, args=(1,), countdown=60)
        delayq.advance(minutes=2)
        assert ran == [1, 0]
        if "result_backend" in conf:
            assert result.get(timeout=10) == 1
    assert {name: app.conf.get(name) for name in before} == before


@pytest.mark.parametrize(
    ("namespace", "names"),
    [
        (None, ("broker_url", "result_backend", "task_always_eager")),
        ("CELERY", ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "CELERY_TASK_ALWAYS_EAGER")),
        (None, ("BROKER_URL", "CELERY_RESULT_BACKEND", "CELERY_ALWAYS_EAGER")),
    ],
    ids=["new names", "a namespace, as for Django", "old names"],
)
def test_settings_may_have_any_names(
    redis_server: PrivateRedis, namespace: str | None, names: tuple[str, str, str]
) -> None:
    app = Celery("shop", set_as_current=False)
    values = (NOWHERE, "redis://nowhere.invalid:1/0", True)
    app.config_from_object(SimpleNamespace(**dict(zip(names, values, strict=True))), namespace=namespace)
    with private_broker(app, redis_server):
        assert not any("nowhere" in str(one) for one in where(app))
        assert not app.conf.task_always_eager
    assert (app.conf.broker_url, app.conf.result_backend, app.conf.task_always_eager) == values


def test_variables_of_the_environment_do_not_count(redis_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        monkeypatch.setenv(name, NOWHERE)
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://nowhere.invalid:1/0")
    app = make()
    before = where(app)
    with private_broker(app, redis_server):
        assert not any("nowhere" in str(one) for one in where(app))
    assert where(app) == before


def test_the_app_is_as_it_was(redis_server: PrivateRedis) -> None:
    app = make(broker_url=NOWHERE, result_backend="redis://nowhere.invalid:1/0", task_always_eager=True)
    pool, producers, backend = app.pool, app.amqp.producer_pool, app.backend
    before = where(app)
    with private_broker(app, redis_server):
        assert "nowhere" not in str(where(app))
        assert app.pool is not pool
    assert (app.pool, app.amqp.producer_pool, app.backend) == (pool, producers, backend)
    assert app.conf.task_always_eager
    assert where(app) == before


def test_the_server_is_empty_at_first_and_kept_by_those_within(redis_server: PrivateRedis, app: Celery) -> None:
    with redis_server.client() as client:
        client.set("left", "over")
        with private_broker(app, redis_server):
            assert not client.dbsize()
            app.tasks["note"].apply_async(countdown=60)
            with private_broker(app, redis_server):
                DelayQTester(app).assert_scheduled("note")
            DelayQTester(app).assert_scheduled("note")
        with private_broker(app, redis_server):
            DelayQTester(app).assert_not_scheduled("note")


def test_no_connection_is_left(redis_server: PrivateRedis, app: Celery) -> None:
    def connections(client: redis.Redis) -> set[str]:
        return {it["id"] for it in client.client_list()}

    with redis_server.client() as client:
        before = connections(client)
        for _ in range(3):
            with private_broker(app, redis_server):
                app.tasks["send"].apply_async((1, 60), countdown=60)
                DelayQTester(app).advance(minutes=2)
                assert connections(client) - before
        wait_until(lambda: not connections(client) - before, "the server has noticed")


def test_results_that_are_not_on_redis_stay_where_they_are(redis_server: PrivateRedis) -> None:
    app = make(broker_url=NOWHERE, result_backend="cache+memory://")
    backend = app.backend
    with private_broker(app, redis_server):
        assert type(app.backend) is type(backend)


def test_the_apps_own_delayq_uses_the_server(redis_server: PrivateRedis) -> None:
    app = make(broker_url=NOWHERE)
    delayq = DelayQ(app)

    @app.task(name="note", shared=False)
    def note() -> None:
        pass

    with private_broker(app, redis_server):
        result = note.apply_async(countdown=60)
        assert delayq.cancel(result)
