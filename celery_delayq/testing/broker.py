"""private_broker: for a while, an app has a private server as its broker, and nothing of what it knew before."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.backends.redis import RedisBackend
from kombu import pools

from celery_delayq.testing.private_redis import PrivateRedis
from celery_delayq.transport import register

#: They come before the settings of the app.
_VARIABLES = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")

#: Options of a broker that say how to reach it, or how safe it is.
_OF_THE_BROKER = ("credential_provider", "master_name", "replicas", "sentinel_kwargs")

#: How the URLs of result backends begin that are on a Redis, and on a Sentinel.
_ON_REDIS = ("redis", "delayq", "sentinel")


@contextmanager
def private_broker(app: Any, server: PrivateRedis) -> Iterator[Any]:
    """Let an app use a private server, which is emptied first: as its broker, and instead of a result backend on Redis.

    Tasks are delayed there even if `task_always_eager` is set. At the end, the app is as it was before. An app that
    uses the server already stays as it is, and so does the server.

    Private attributes of Celery (5.6 and 5.7) are used, because it has no public way to forget its connections:
    `Celery._pool`, `_local`, `_backend_cache`, `AMQP._producer_pool`, and `_pubsub` of the Redis backend's consumer.

    Args:
        app: the Celery app.
        server: the server. Everything on it is deleted.

    Yields:
        The app.
    """
    url = f"delayq://127.0.0.1:{server.port}/0"
    if app.conf.broker_write_url == url:
        yield app
        return
    with server.client() as client:
        client.flushall()
    register()
    variables = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    settings = _settings(app.conf, url, server.url)
    before = {name: app.conf.get(name) for name in settings}
    connections = app._pool, app.amqp._producer_pool, app._local, app._backend_cache
    app.conf.update(_named(app.conf, settings))
    _set_connections(app, None, None, threading.local(), None)
    try:
        yield app
    finally:
        _close(app)
        _set_connections(app, *connections)
        app.conf.update(_named(app.conf, before))
        os.environ.update(variables)


def _settings(conf: Any, broker: str, results: str) -> dict[str, Any]:
    options = {name: value for name, value in conf.broker_transport_options.items() if name not in _OF_THE_BROKER}
    settings = {
        "broker_url": broker,
        "broker_read_url": None,
        "broker_write_url": None,
        "broker_transport": None,
        "broker_use_ssl": None,
        "broker_transport_options": options,
        "task_always_eager": False,
    }
    if str(conf.result_backend).startswith(_ON_REDIS):
        settings |= {"result_backend": results, "redis_backend_use_ssl": None}
    return settings


def _named(conf: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by all names that they have: with Celery 5.6, those with the namespace come first."""
    prefix = conf.prefix or ""
    full = {f"{prefix}{name}": value for name, value in settings.items()}
    return {**settings, **{(name.upper() if prefix.isupper() else name): value for name, value in full.items()}}


def _set_connections(app: Any, pool: Any, producers: Any, local: Any, backend: Any) -> None:
    app._pool, app.amqp._producer_pool, app._local, app._backend_cache = pool, producers, local, backend


def _close(app: Any) -> None:
    """Close all connections to the private server, and let kombu forget their pools, which are closed for good."""
    for group, mine in ((pools.producers, app.amqp._producer_pool), (pools.connections, app._pool)):
        for key in [key for key, pool in group.items() if pool is mine]:
            group.pop(key).force_close_all()
    backend = getattr(app._local, "backend", None)
    if isinstance(backend, RedisBackend):
        backend.result_consumer.stop()
        # Results unsubscribe when they are collected, even if the server is gone by then.
        backend.result_consumer._pubsub = None
        backend.client.connection_pool.disconnect()
