"""What is said where `DelayQ(app)` is missing."""

from __future__ import annotations

import click

from celery_delayq.errors import ConfigurationError

_ADVICE = """\
the broker URL starts with delayq, but DelayQ(app) was not called. Call it where the app is created:

    from celery_delayq import DelayQ

    delayq = DelayQ(app)

A process without such an app can call celery_delayq.register() instead. A program that is not yours, such as \
celery-exporter, takes the redis:// URL of the same server."""


class NotCalled(click.ClickException, ConfigurationError):
    """A `delayq` URL is used, and `DelayQ(app)` was not called. Celery's command line shows the message alone."""

    def __init__(self) -> None:
        super().__init__(_ADVICE)
