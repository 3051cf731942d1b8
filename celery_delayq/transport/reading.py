"""A connection for programs that look at the broker: it does not wait long, and a replica is enough for it."""

from __future__ import annotations

from typing import Any

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.schemes import register
from celery_delayq.transport import require_transport


def connection_for_reading(app: Any, timeout_s: float) -> Any:
    """Return a connection of kombu that is not connected yet, also for an app that has no DelayQ.

    Args:
        app: the Celery app.
        timeout_s: how long to wait for an answer, in seconds, unless the app's options say less.

    Raises:
        ConfigurationError: the broker URL is wrong, or not a `delayq://` URL, or an option is wrong.
    """
    register()
    try:
        connection = app.connection_for_write()
        connection.get_transport_cls()  # kombu looks up the scheme only now
    except (ValueError, KeyError) as exc:
        raise ConfigurationError(f"wrong broker URL: {exc}") from exc
    connection.may_be_replica = True
    options = connection.transport_options = dict(connection.transport_options)
    for name in ("socket_timeout", "socket_connect_timeout"):
        options[name] = min(options.get(name) or timeout_s, timeout_s)
    require_transport(app, connection)
    return connection


def channel_for_reading(connection: Any) -> Any:
    """Return the channel of such a connection; connect, in two attempts at most.

    Raises:
        ConfigurationError: an option is wrong.
        redis.RedisError, kombu.exceptions.OperationalError: the server is away, or refuses.
    """
    try:
        connection.ensure_connection(max_retries=1, interval_start=0)
        return connection.default_channel
    except ValueError as exc:  # of kombu: the database is no number, for example
        raise ConfigurationError(f"wrong broker URL or broker_transport_options: {exc}") from exc
