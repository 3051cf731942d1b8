"""`celery -A app delayq orphans ...`: delayed queues that Java applications left behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from difflib import get_close_matches
from itertools import islice
from typing import Any

import click
import redis
from celery.bin.base import CeleryCommand, handle_preload_options
from celery.result import denied_join_result
from celery.utils import uuid
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from celery_delayq import orphans as orphaned
from celery_delayq.cli.broker import delayq_channel
from celery_delayq.delayed_queue import registered
from celery_delayq.entry import Entry
from celery_delayq.keys import QueueKeys
from celery_delayq.orphans import Orphan
from celery_delayq.transport.drafts import drafts

#: Columns of the output where it goes into a file.
_WIDTH = 120

#: How a payload becomes the argument of a task. Each raises ValueError if it cannot.
CODECS: dict[str, Callable[[bytes], Any]] = {
    "text": lambda payload: payload.decode(),
    "json": json.loads,
    "base64": lambda payload: base64.b64encode(payload).decode(),
}


_codec_option = click.option(
    "--codec", type=click.Choice(sorted(CODECS)), default="text", show_default=True, help="What a payload is."
)


@click.group()
def orphans() -> None:
    """Delayed queues that Java applications left behind: what waits in them, and who shall have it."""


@orphans.command(name="list", cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def show(ctx: click.Context, as_json: bool) -> None:
    """Show the delayed queues that nobody on the Python side transfers."""
    _, channel = ctx.with_resource(delayq_channel(ctx.obj.app))
    rows = [_row(orphan) for orphan in orphaned.find(channel.plain_client, channel.global_keyprefix)]
    _print(rows, ("list", "waiting", "first due", "last due", "listeners"), as_json)


@orphans.command(cls=CeleryCommand)
@click.argument("queue")
@_codec_option
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many, the earliest first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def entries(ctx: click.Context, queue: str, codec: str, limit: int, as_json: bool) -> None:
    """Show what waits in the delayed queue of the list QUEUE, and when it is due."""
    _, channel = ctx.with_resource(delayq_channel(ctx.obj.app))
    found = islice(Orphan.look(channel.plain_client, queue).entries(channel.plain_client), limit)
    _print([_entry_row(entry, codec) for entry in found], ("due", "payload", "problem"), as_json)


@orphans.command(cls=CeleryCommand)
@click.argument("queues", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that `orphans list` shows.")
@click.option("--task", help="Make each entry a task of this name, with its payload as the argument and its due time.")
@_codec_option
@click.option("--queue", help="With --task: the queue of the tasks, instead of the one they are routed to.")
@click.option("--force", is_flag=True, help="Also what a Java application that runs, or workers, transfer.")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a queue.")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]
def adopt(
    ctx: click.Context,
    queues: tuple[str, ...],
    everything: bool,
    task: str | None,
    codec: str,
    queue: str | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take over orphaned delayed QUEUES, named by their lists.

    Without --task, workers and `delayq transfer` move the entries to their lists when they are due, from now on.
    With --task, each entry becomes a Celery task.

    It may be interrupted and run again: no entry is lost, and none is taken twice.
    """
    app = ctx.obj.app
    if bool(queues) == everything:
        raise click.UsageError("name the lists that `orphans list` shows, or say --all")
    if task is None and (queue or codec != "text"):
        raise click.UsageError("--queue and --codec go with --task")
    if task is not None:
        _check_task(app, task)
    _, channel = ctx.with_resource(delayq_channel(app))
    client, keyprefix = channel.plain_client, channel.global_keyprefix
    chosen = _chosen(client, keyprefix, queues, force)
    for orphan in chosen:
        row = {**_row(orphan), "dry_run": dry_run, "task": task}
        if task is None:
            if not dry_run:
                orphan.adopt(client, keyprefix)
            row.update(taken=orphan.waiting, left=0)
        else:
            tasks = _Tasks(app, task, CODECS[codec], queue, channel, orphan.name)
            taken, left = _count(client, orphan, tasks) if dry_run else _hand_over(client, orphan, tasks)
            row.update(taken=taken, left=left)
        click.echo(json.dumps(row) if as_json else _sentence(row, codec))
    if dry_run and not as_json:
        click.echo("Nothing was changed: --no-dry-run does it.")


class _Tasks:
    """Makes tasks of the entries of one list."""

    def __init__(
        self, app: Any, task: str, decode: Callable[[bytes], Any], queue: str | None, channel: Any, taken_from: str
    ) -> None:
        self._app = app
        self._task = task
        self._decode = decode
        self._options = {"queue": queue} if queue else {}
        self._channel = channel
        self._taken_from = taken_from
        self._own_timeout_set = QueueKeys.of(taken_from).timeout_set
        self._producer = app.amqp.Producer(channel)

    def arguments(self, entry: Entry) -> tuple[Any, datetime] | None:
        """Return the argument and the eta of the task; None if the payload is not what the codec says."""
        try:
            return self._decode(entry.payload), datetime.fromtimestamp(entry.due_ms / 1000, timezone.utc)
        except (ValueError, OverflowError, OSError, RecursionError):
            return None

    def command(self, entry: Entry) -> tuple[Any, ...] | None:
        """Return the Redis command that publishes the task."""
        found = self.arguments(entry)
        if found is None:
            return None
        argument, eta = found
        task_id = uuid()
        with denied_join_result():  # nobody will wait for the results here
            commands = drafts(
                self._channel,
                task_id,
                lambda: self._app.send_task(
                    self._task,
                    (argument,),
                    eta=eta,
                    task_id=task_id,
                    producer=self._producer,
                    add_to_parent=False,
                    **self._options,
                ),
            )
        if len(commands) != 1:
            raise click.ClickException(f"{self._task} is routed to {len(commands)} queues: name one with --queue")
        if self._own_timeout_set in commands[0]:  # it would be taken again, and become a task about a task
            raise click.ClickException(
                f"{self._task} is routed to {self._taken_from!r}, whose entries are taken: name another with --queue"
            )
        return commands[0]


def _check_task(app: Any, task: str) -> None:
    app.loader.import_default_modules()
    if task not in app.tasks:
        close = get_close_matches(task, app.tasks, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "workers would discard it"
        raise click.ClickException(f"app {app.main!r} has no task {task!r}: {hint}")


def _chosen(client: redis.Redis, keyprefix: str, queues: tuple[str, ...], force: bool) -> list[Orphan]:
    if not queues:
        found = orphaned.find(client, keyprefix)
    else:
        found = [Orphan.look(client, name) for name in queues]
        _refuse([orphan for orphan in found if not orphan.waiting], "nothing waits there; see `orphans list`")
    if not force:
        known = registered(client, keyprefix)
        _refuse(
            [orphan for orphan in found if orphan.name in known], "no orphan, workers transfer it; --force all the same"
        )
        _refuse(
            [orphan for orphan in found if orphan.listeners], "an application listens: stop it first, or say --force"
        )
    return found


def _refuse(found: list[Orphan], reason: str) -> None:
    if found:
        raise click.ClickException(f"{', '.join(repr(orphan.name) for orphan in found)}: {reason}")


def _count(client: redis.Redis, orphan: Orphan, tasks: _Tasks) -> tuple[int, int]:
    taken = left = 0
    with _progress(orphan) as advance:
        for entry in orphan.entries(client):
            if entry is not None and tasks.arguments(entry) is not None:
                taken += 1
            else:
                left += 1
            advance(1)
    return taken, left


def _hand_over(client: redis.Redis, orphan: Orphan, tasks: _Tasks) -> tuple[int, int]:
    taken = left = 0
    with _progress(orphan) as advance:
        for batch in orphan.hand_over(client, tasks.command):
            taken, left = taken + batch.moved, left + batch.left
            advance(batch.moved + batch.left)
    return taken, left


@contextmanager
def _progress(orphan: Orphan) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(orphan.name, total=orphan.waiting)
        yield lambda count: progress.advance(bar, count)


def _row(orphan: Orphan) -> dict[str, Any]:
    return {
        "list": orphan.name,
        "waiting": orphan.waiting,
        "first_due": _isoformat(orphan.first_due_ms),
        "last_due": _isoformat(orphan.last_due_ms),
        "listeners": orphan.listeners,
    }


def _entry_row(entry: Entry | None, codec: str) -> dict[str, Any]:
    if entry is None:
        return {"due": None, "payload": None, "problem": "no entry"}
    try:
        payload, problem = CODECS[codec](entry.payload), None
    except (ValueError, RecursionError):
        payload, problem = repr(entry.payload), f"not {codec}"
    return {"due": _isoformat(entry.due_ms), "payload": payload, "problem": problem}


def _print(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*("-" if value is None else escape(str(value)) for value in row.values()))
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


def _isoformat(due_ms: int | None) -> str | None:
    try:
        if due_ms is None:
            return None
        return datetime.fromtimestamp(due_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{due_ms} ms"


def _sentence(row: dict[str, Any], codec: str) -> str:
    would = "would " if row["dry_run"] else ""
    if row["task"] is None:
        what = "be moved to their list when they are due" if would else "are moved to their list when they are due"
        return f"{row['list']}: {row['taken']} entries {would}{what}."
    what = "become" if would else "became"
    left = f" {row['left']} are not {codec}, and stay." if row["left"] else ""
    return f"{row['list']}: {row['taken']} entries {would}{what} {row['task']} tasks.{left}"
