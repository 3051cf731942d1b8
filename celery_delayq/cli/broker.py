"""The broker of an app, as all commands need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from kombu.exceptions import OperationalError

from celery_delayq.errors import DelayqError
from celery_delayq.transport import Transport


@contextmanager
def delayq_channel(app: Any) -> Iterator[tuple[Any, Any]]:
    """Connect; give the connection and a channel.

    Raises:
        click.ClickException: another transport, a wrong setting, or the server cannot be reached.
    """
    try:
        with app.connection_for_write() as connection:
            if not isinstance(connection.transport, Transport):
                raise click.ClickException(
                    f"the broker is {connection.as_uri()}: begin the URL with delayq:// instead of redis://"
                )
            connection.ensure_connection(max_retries=1)
            yield connection, connection.default_channel
    except DelayqError as exc:
        raise click.ClickException(str(exc)) from exc
    except OperationalError as exc:
        raise click.ClickException(f"cannot connect to {connection.as_uri()}: {exc}") from exc
