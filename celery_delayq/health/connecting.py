"""A connection to the broker of an app, for commands and checks: its errors are sentences that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_delayq.basics.deadline import raise_rather_than_wait
from celery_delayq.basics.errors import DelayqError
from celery_delayq.health.called import was_called
from celery_delayq.options.settings import check_urls
from celery_delayq.transport import Transport, register
from celery_delayq.transport.urls import hosts_of, what_to_write
from celery_delayq.transport.wrong_server import refusing_wrong_server

_ADVICE = ", and create DelayQ(app) in the module that `celery -A` names"

_NO_CONNECTION = (OperationalError, RedisConnectionError, RedisTimeoutError)


class NoBroker(Exception):
    """The broker of an app cannot be used. The message says why; its cause is the error, if a server raised one.

    Attributes:
        is_refused: whether the server refuses a command.
    """

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused


@contextmanager
def reaching(app: Any, *, patience_s: float | None = None) -> Iterator[Any]:
    """Connect, and yield a channel. Errors name the URL without its password.

    Args:
        app: the Celery app.
        patience_s: how long to wait for each answer, in seconds; then, each URL is tried once. By default, the options
            say how long.

    Raises:
        NoBroker: the app uses another transport, the URL or a setting is wrong, or the server cannot be
            reached, refuses a command, or goes away.
    """
    register()  # for `-b delayq://...` with an app that has no DelayQ
    with _connection(app, patience_s) as connection:
        connected = False
        try:
            check_urls(app)
            if not isinstance(connection.transport, Transport):
                what, advice = what_to_write(app, connection, f"the broker of app {app.main!r}")
                raise NoBroker(f"{what}: {advice}{'' if was_called(app) else _ADVICE}")
            retries = 1 if patience_s is None else _other_urls(connection)
            connection.ensure_connection(errback=raise_rather_than_wait, max_retries=retries)
            channel = connection.default_channel
            connected = True
            with refusing_wrong_server(channel.plain_client):
                yield channel
        except DelayqError as exc:
            raise NoBroker(str(exc)) from exc
        except _NO_CONNECTION as exc:
            if isinstance(exc.__cause__, ResponseError):
                raise NoBroker(f"{connection.as_uri()}: {exc}", is_refused=True) from exc
            url = connection.as_uri()
            trouble = f"lost the connection to {url}" if connected else f"cannot connect to {url}"
            if connected and connection.transport.nodes is not None:  # the error names the node
                trouble = f"lost the connection to a node of {url}"
            again = "; run the command again to make sure" if connected else ""
            raise NoBroker(f"{trouble}: {_reason(exc)}{again}") from exc
        except RedisError as exc:
            raise NoBroker(f"{connection.as_uri()} refused a command: {exc}", is_refused=True) from exc
        except ValueError as exc:  # kombu's of an option, and urllib's of a URL
            if connected:
                raise
            raise NoBroker(f"wrong broker URL or broker_transport_options: {exc}") from exc


def _reason(exc: Exception) -> str:
    """Return why there is no connection. If no sentinel names a master, redis-py describes its clients at length."""
    text = str(exc).rstrip(".")
    return text.partition(" : ")[0] if text.startswith("No master found") else text


def _other_urls(connection: Any) -> int:
    """Return how many times to try to connect again without a pause: kombu takes the next URL each time."""
    if hosts_of(connection):  # which looks at all URLs itself
        return 0
    return max(0, len(connection.alt or ()) - 1)


def _connection(app: Any, patience_s: float | None) -> Any:
    options: dict[str, Any] = {}
    if patience_s is not None:  # nothing is written, so no replica is waited for
        options = {"socket_timeout": patience_s, "socket_connect_timeout": patience_s, "replicas": 0}
    try:
        connection = app.connection_for_write(transport_options=options)
        connection.get_transport_cls()  # kombu looks up a scheme such as `delay+socket` only now
        connection.may_be_replica = True  # a replica is enough for reading
        return connection
    except ValueError as exc:
        raise NoBroker(f"wrong broker URL: {exc}") from exc
    except KeyError as exc:  # kombu does not know the scheme
        raise NoBroker(_unknown_scheme(app, str(exc.args[0]))) from exc


def _unknown_scheme(app: Any, error: str) -> str:
    """Return what to do about kombu's `No such transport: NAME`, perhaps with `.  Did you mean OTHER?` after it."""
    name = error.partition(": ")[2].partition(".  ")[0]
    if app.conf.broker_transport:
        return f"broker_transport is {name!r}: leave it out, and start the broker URL with delayq://"
    return f"the broker URL starts with {name}://: write delayq:// instead"
