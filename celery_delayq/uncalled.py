"""What is said where `DelayQ(app)` is missing."""

from __future__ import annotations

from typing import Any

import click

from celery_delayq.errors import ConfigurationError

NOT_CALLED = "the broker URL starts with delayq, but DelayQ(app) was not called"

WHERE = "Call it where the app is created"

_ADVICE = f"""\
{NOT_CALLED}. {WHERE}:

    from celery_delayq import DelayQ

    delayq = DelayQ(app)

A process without such an app can call celery_delayq.register() instead. A program that is not yours, such as \
celery-exporter, takes the redis:// URL of the same server."""


class NotCalled(click.ClickException, ConfigurationError):
    """A `delayq` URL is used, and `DelayQ(app)` was not called. Celery's command line shows the message alone."""

    def __init__(self, message: str = _ADVICE) -> None:
        # Pickle passes the message: a task of another app, in a pool of processes, may raise this.
        super().__init__(message)


def is_missing(app: Any) -> bool:
    """Return whether kombu refuses the broker URL of an app, because nothing has called `DelayQ(app)` or `register`.

    It is never so for the app that Celery makes if nobody has made one: there is no module that could call it.
    """
    if is_fallback(app):
        return False
    try:
        app.connection_for_write().get_transport_cls()
    except NotCalled:
        return True
    except (KeyError, ValueError):  # another wrong URL
        return False
    return False


def was_called(app: Any) -> bool:
    """Return whether `DelayQ(app)` was called, whatever the broker URL of the app is."""
    return any(str(step).startswith("celery_delayq.") for step in app.steps["consumer"])


def is_fallback(app: Any) -> bool:
    """Return whether an app is the one that `current_app` makes if nobody has made any.

    Source: Celery 5.7 `celery._state._get_current_app`.
    """
    return bool(app.main == "default" and not app.set_as_current)
