"""The broker of an app: its channel, its inspector and its queues, for all commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from celery.app.utils import find_app

from celery_delayq.basics.text import with_app
from celery_delayq.cli.command import Decorator
from celery_delayq.health.connecting import NoBroker, reaching
from celery_delayq.inspector import Inspector
from celery_delayq.inspector.away import Lost

#: What servers say if a user may not do something; the last two in scripts, before Redis 7.
_NO_RIGHT = re.compile("[Nn]o permissions to|NOPERM|user executing the script")


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
def delayq_channel(app: Any) -> Iterator[Any]:
    """Connect, and yield a channel. Errors name the URL without its password.

    Raises:
        click.ClickException: the app uses another transport, the URL or a setting is wrong, or the server cannot be
            reached, refuses a command, or goes away.
    """
    try:
        with reaching(app) as channel:
            yield channel
    except NoBroker as exc:
        raise (Refused if exc.is_refused else click.ClickException)(str(exc)) from exc.__cause__


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
