"""The broker of an app: its channel, its inspector and its queues, for all commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from celery.app.utils import find_app
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_delayq.basics.errors import DelayqError
from celery_delayq.cli.command import Decorator
from celery_delayq.health.advice import with_app
from celery_delayq.health.called import was_called
from celery_delayq.inspector import Inspector
from celery_delayq.inspector.away import Lost
from celery_delayq.options.settings import check_urls
from celery_delayq.transport import Transport, register
from celery_delayq.transport.urls import hosts_of, what_to_write
from celery_delayq.transport.wrong_server import refusing_wrong_server

_ADVICE = ", and create DelayQ(app) in the module that `celery -A` names"

#: What servers say if a user may not do something; the last two in scripts, before Redis 7.
_NO_RIGHT = re.compile("[Nn]o permissions to|NOPERM|user executing the script")

_NO_CONNECTION = (OperationalError, RedisConnectionError, RedisTimeoutError)


class Refused(click.ClickException):
    """The server refuses a command. If a right is missing, people read what names it; `message` does not have that."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        pointer = with_app("; `celery -A ... delayq check` names the missing rights")  # later, `-A` is not known
        self._pointer = pointer if _NO_RIGHT.search(message) else ""

    def format_message(self) -> str:
        """Return what people read."""
        return f"{self.message.rstrip('.')}{self._pointer}" if self._pointer else self.message


@contextmanager
def delayq_channel(app: Any, *, patience_s: float | None = None) -> Iterator[Any]:
    """Connect, and yield a channel. Errors name the URL without its password.

    Args:
        app: the Celery app.
        patience_s: how long to wait for each answer, in seconds; then, each URL is tried once. By default, the options
            say how long.

    Raises:
        click.ClickException: the app uses another transport, the URL or a setting is wrong, or the server cannot be
            reached, refuses a command, or goes away.
    """
    register()  # for `-b delayq://...` with an app that has no DelayQ
    with _connection(app, patience_s) as connection:
        connected = False
        try:
            check_urls(app)
            if not isinstance(connection.transport, Transport):
                what, advice = what_to_write(app, connection, f"the broker of app {app.main!r}")
                raise click.ClickException(f"{what}: {advice}{'' if was_called(app) else _ADVICE}")
            connection.ensure_connection(max_retries=1 if patience_s is None else _other_urls(connection))
            channel = connection.default_channel
            connected = True
            with refusing_wrong_server(channel.plain_client):
                yield channel
        except DelayqError as exc:
            raise click.ClickException(str(exc)) from exc
        except _NO_CONNECTION as exc:
            if isinstance(exc.__cause__, ResponseError):
                raise Refused(f"{connection.as_uri()}: {exc}") from exc
            url = connection.as_uri()
            trouble = f"lost the connection to {url}" if connected else f"cannot connect to {url}"
            if connected and connection.transport.nodes is not None:  # the error names the node
                trouble = f"lost the connection to a node of {url}"
            again = "; run the command again to make sure" if connected else ""
            raise click.ClickException(f"{trouble}: {_reason(exc)}{again}") from exc
        except RedisError as exc:
            raise Refused(f"{connection.as_uri()} refused a command: {exc}") from exc
        except ValueError as exc:  # kombu's of an option, and urllib's of a URL
            if connected:
                raise
            raise click.ClickException(f"wrong broker URL or broker_transport_options: {exc}") from exc


@contextmanager
def inspecting(app: Any) -> Iterator[Inspector]:
    """Connect, and yield an inspector that knows the app's queues. Raises the same errors as `delayq_channel`."""
    with delayq_channel(app) as channel:
        yield Inspector(channel, app.amqp.queues)


def check_complete(lost: Lost) -> None:
    """Say what is not shown because nodes of a cluster are away; called after everything else is shown.

    Raises:
        click.ClickException: something is not shown.
    """
    if lost:
        raise click.ClickException(f"this is not complete: {lost}")


def complete_queue(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the app's queues that start with this text, and, if Redis can be reached, those with delayed tasks."""
    try:
        app = find_app(ctx.find_root().params["app"])
    except Exception:  # the app's module may raise anything, and shell completion must not print a traceback
        return []
    if app is None:
        return []
    names = set(app.amqp.queues)
    try:
        with inspecting(app) as inspector:
            names.update(inspector.queues())
    except click.ClickException:
        pass  # without Redis, complete from the app's queues alone
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


def queue_option(help: str = "Only tasks of this queue.") -> Decorator:
    """Return the option `--queue`, with shell completion."""
    return click.option("--queue", shell_complete=complete_queue, help=help)


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
        raise click.ClickException(f"wrong broker URL: {exc}") from exc
    except KeyError as exc:  # kombu does not know the scheme
        raise click.ClickException(_unknown_scheme(app, str(exc.args[0]))) from exc


def _unknown_scheme(app: Any, error: str) -> str:
    """Return what to do about kombu's `No such transport: NAME`, perhaps with `.  Did you mean OTHER?` after it."""
    name = error.partition(": ")[2].partition(".  ")[0]
    if app.conf.broker_transport:
        return f"broker_transport is {name!r}: leave it out, and start the broker URL with delayq://"
    return f"the broker URL starts with {name}://: write delayq:// instead"
