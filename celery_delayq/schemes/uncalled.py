"""What is said where `DelayQ(app)` is missing."""

from __future__ import annotations

import click

from celery_delayq.basics.errors import ConfigurationError

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
