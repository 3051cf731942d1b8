"""`celery -A app delayq dead ...`: messages that were set aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from rich.console import Console
from rich.table import Table

from celery_delayq.cli.broker import delayq_channel
from celery_delayq.dead_letters import NOT_AN_ENTRY, DeadLetter, DeadLetters
from celery_delayq.transport.redelivery import decode, revived

#: Columns of the output where it goes into a file.
_WIDTH = 120


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments by which messages are chosen; see `_chosen`."""
    command = click.option("--all", "everything", is_flag=True, help="All of the queue.")(command)
    command = click.argument("ids", nargs=-1)(command)
    return click.argument("queue")(command)


@click.group()
def dead() -> None:
    """Messages that were set aside: delivered too often without an acknowledgement, or not to be decoded."""


@dead.command(name="list", cls=CeleryCommand)
@click.argument("queue", default="")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def show(ctx: click.Context, queue: str, as_json: bool) -> None:
    """Show the dead messages of a QUEUE, the app's default one unless another is named."""
    rows = [_row(letters.name, letter) for letters in _lists(ctx, queue) for letter in letters]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table = Table("id", "task", "task id", "reason", "deliveries", "set aside")
    for row in rows:
        table.add_row(*(str("-" if row[name] is None else row[name]) for name in _COLUMNS))
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


_COLUMNS = ("id", "task", "task_id", "reason", "deliveries", "at")


def _row(name: str, letter: DeadLetter) -> dict[str, Any]:
    message = decode(letter.message) or {}
    headers = message.get("headers")
    headers = headers if isinstance(headers, dict) else {}
    at = None if letter.at_ms is None else datetime.fromtimestamp(letter.at_ms / 1000, timezone.utc)
    return {
        "id": letter.id,
        "list": name,
        "task": headers.get("task"),
        "task_id": headers.get("id"),
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "at": at and at.isoformat(timespec="seconds"),
    }


@dead.command(cls=CeleryCommand)
@_choosing
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def requeue(ctx: click.Context, queue: str, ids: tuple[str, ...], everything: bool) -> None:
    """Put dead messages of a QUEUE back to the end of it, by their IDS; their deliveries are counted anew."""
    done = 0
    for letters, letter in _chosen(ctx, queue, ids, everything):
        if letter.reason == NOT_AN_ENTRY:
            click.echo(f"{letter.id} is no message: it can be purged, but not be requeued", err=True)
        else:
            done += letters.requeue(letter, revived(letter.message))
    click.echo(f"{done} messages requeued.")


@dead.command(cls=CeleryCommand)
@_choosing
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def purge(ctx: click.Context, queue: str, ids: tuple[str, ...], everything: bool) -> None:
    """Delete dead messages of a QUEUE for good, by their IDS."""
    click.echo(f"{sum(letters.purge(letter) for letters, letter in _chosen(ctx, queue, ids, everything))} purged.")


def _lists(ctx: click.Context, queue: str) -> list[DeadLetters]:
    app = ctx.obj.app
    _, channel = ctx.with_resource(delayq_channel(app))
    names = channel.broker_lists(queue or app.conf.task_default_queue)
    return [DeadLetters(channel.plain_client, name) for name in names]


def _chosen(
    ctx: click.Context, queue: str, ids: tuple[str, ...], everything: bool
) -> Iterator[tuple[DeadLetters, DeadLetter]]:
    if bool(ids) == everything:
        raise click.UsageError("name the messages by the ids that `dead list` shows, or say --all")
    found = [(letters, letter) for letters in _lists(ctx, queue) for letter in letters]
    unknown = set(ids) - {letter.id for _, letter in found}
    if unknown:
        raise click.ClickException(f"no dead message of {queue!r} has the id {', '.join(sorted(unknown))}")
    return ((letters, letter) for letters, letter in found if everything or letter.id in ids)
