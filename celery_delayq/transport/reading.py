"""A connection for programs that look at the broker: it does not wait long, and a replica is enough for it."""

from __future__ import annotations

from typing import Any

from celery_delayq.basics.errors import ConfigurationError


def connection_for_reading(app: Any, timeout_s: float) -> Any:
    """Return a connection of kombu that is not connected yet.

    Args:
        app: the Celery app.
        timeout_s: how long to wait for an answer, in seconds, unless the app's options say less.

    Raises:
        ConfigurationError: the broker URL is wrong.
    """
    try:
        connection = app.connection_for_write()
        connection.get_transport_cls()  # kombu looks up the scheme only now
    except (ValueError, KeyError) as exc:
        raise ConfigurationError(f"wrong broker URL: {exc}") from exc
    connection.may_be_replica = True
    options = connection.transport_options = dict(connection.transport_options)
    for name in ("socket_timeout", "socket_connect_timeout"):
        options[name] = min(options.get(name) or timeout_s, timeout_s)
    return connection
