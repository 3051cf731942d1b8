"""`celery -A app delayq orphans ...`: delayed queues that Java applications left behind."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from difflib import get_close_matches
from itertools import islice
from typing import Any

import click
import redis
from celery.result import denied_join_result
from celery.utils import uuid
from rich.table import Table

from celery_delayq.basics.text import plural
from celery_delayq.basics.times import to_datetime
from celery_delayq.cli.broker import delayq_channel
from celery_delayq.cli.command import command, json_option
from celery_delayq.cli.output import add_columns, new_table, print_json, print_rows, progress, text
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import shown
from celery_delayq.queue import orphans as orphaned
from celery_delayq.queue.call import Attempt
from celery_delayq.queue.entry import Entry
from celery_delayq.queue.orphans import Orphan
from celery_delayq.queue.registry import registered
from celery_delayq.transport.capture import capture
from celery_delayq.transport.publishing import offer_command

#: Functions that turn a payload into the argument of a task. Each raises ValueError if it cannot.
CODECS: dict[str, Callable[[bytes], Any]] = {
    "text": lambda payload: payload.decode(),
    "json": json.loads,
    "base64": lambda payload: base64.b64encode(payload).decode(),
}


#: Columns with times.
_TIMES = ("first_due", "last_due", "due")

_codec_option = click.option(
    "--codec", type=click.Choice(sorted(CODECS)), default="text", show_default=True, help="How to decode payloads."
)


@click.group()
def orphans() -> None:
    """Inspect and adopt queues that Java left behind.

    An orphan is a delayed queue that a Java application left behind, and that no Python worker transfers.
    """


@command("list", orphans)
@json_option
def list_(ctx: click.Context, as_json: bool) -> None:
    """Show the delayed queues that no Python worker transfers."""
    with delayq_channel(ctx.obj.app) as channel:
        rows = [_row(orphan) for orphan in orphaned.find(channel.plain_client, channel.global_keyprefix)]
    _print(rows, as_json, "There are no orphans.")


@command("entries", orphans)
@click.argument("queue")
@_codec_option
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Show at most this many, earliest first."
)
@json_option
def entries(ctx: click.Context, queue: str, codec: str, limit: int, as_json: bool) -> None:
    """Show the entries that wait for the list QUEUE, and when they are due."""
    with delayq_channel(ctx.obj.app) as channel:
        found = islice(Orphan.look(channel.plain_client, queue).entries(channel.plain_client), limit)
        rows = [_entry_row(entry, codec) for entry in found]
    _print(rows, as_json, f"Nothing waits for {queue}.")


@command("adopt", orphans)
@click.argument("queues", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Adopt all queues that `orphans list` shows.")
@click.option("--task", help="Turn each entry into a task of this name. The payload becomes its argument.")
@_codec_option
@click.option("--queue", help="With --task: send the tasks to this queue, and ignore routing.")
@click.option("--force", is_flag=True, help="Adopt queues even if workers or a running Java application transfer them.")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Only report what would be done.")
@json_option
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
    """Take over the orphaned delayed queues of the lists QUEUES.

    Without --task, workers and `delayq transfer` will move the entries to their lists when they are due. With --task,
    each entry becomes a Celery task with the same due time.

    You can interrupt this command and run it again: no entry is lost. Within ten minutes, none is taken twice either;
    later, up to 16 may be.
    """
    app = ctx.obj.app
    if bool(queues) == everything:
        raise click.UsageError("give either lists from `orphans list`, or --all")
    if task is None and (queue or codec != "text"):
        raise click.UsageError("--queue and --codec need --task")
    if task is not None:
        _check_task(app, task)
    with delayq_channel(app) as channel:
        client, keyprefix = channel.plain_client, channel.global_keyprefix
        chosen = _chosen(client, keyprefix, queues, force)
        for orphan in chosen:
            row = {**_row(orphan), "dry_run": dry_run, "task": task}
            if task is None:
                if not dry_run:
                    orphan.adopt(client, keyprefix)
                row.update(taken=orphan.waiting, left=0)
            else:
                decode = CODECS[codec]
                replace = _replacing(app, task, decode, queue, channel, orphan.name)
                handed_over = ((batch.moved, batch.left) for batch in orphan.hand_over(client, replace))
                counted = ((1, 0) if _arguments(entry, decode) else (0, 1) for entry in orphan.entries(client))
                row["taken"], row["left"] = _sums(orphan, counted if dry_run else handed_over)
            if as_json:
                print_json(row)
            else:
                say(_sentence(row, codec))
    if dry_run and not as_json:
        say("Dry run: nothing was changed. To adopt, add --no-dry-run.")


def _arguments(entry: Entry | None, decode: Callable[[bytes], Any]) -> tuple[Any, datetime] | None:
    """Return the argument and the eta of the task for an entry, or None if the codec cannot decode the payload."""
    if entry is None:
        return None
    try:
        return decode(entry.payload), _exactly(entry.score)
    except (ValueError, OverflowError, RecursionError):
        return None


def _replacing(
    app: Any, task: str, decode: Callable[[bytes], Any], queue: str | None, channel: Any, taken_from: str
) -> Callable[[Entry], tuple[Any, ...] | None]:
    """Return a function that returns the Redis command that publishes the task for an entry of a list."""
    options = {"queue": queue} if queue else {}
    producer = app.amqp.Producer(channel)

    def replace(entry: Entry) -> tuple[Any, ...] | None:
        found = _arguments(entry, decode)
        if found is None:
            return None
        (argument, eta), task_id = found, uuid()
        with denied_join_result(), capture(task_id) as captured:  # nothing here waits for the results
            app.send_task(
                task, (argument,), eta=eta, task_id=task_id, producer=producer, add_to_parent=False, **options
            )
        if len(captured.messages) != 1:
            raise click.ClickException(f"{task} is routed to {len(captured.messages)} queues: choose one with --queue")
        (caught,) = captured.messages
        if caught.due_ms is None:
            return "lpush", caught.broker_list, caught.payload
        if caught.broker_list == taken_from:  # the new task would be adopted again, as a task about a task
            raise click.ClickException(
                f"{task} is routed to {taken_from!r}, the queue being adopted: choose another with --queue"
            )
        # So that an entry is not taken twice if the command ended before it had removed the entry.
        attempt = Attempt(f"orphans:{taken_from}", hashlib.blake2b(entry.raw, digest_size=16).digest())
        to = channel.delayed_queue(caught.broker_list)
        return offer_command(to, caught.payload, due_ms=caught.due_ms, message_id=caught.message_id, attempt=attempt)

    return replace


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
        _refuse([orphan for orphan in found if not orphan.waiting], "has no waiting entries; see `orphans list`", " ")
    if not force:
        known = registered(client, keyprefix)
        _refuse(
            [orphan for orphan in found if orphan.name in known],
            "not an orphan: workers already transfer it. To adopt it anyway, pass --force",
        )
        _refuse(
            [orphan for orphan in found if orphan.listeners],
            "a running application transfers it: stop the application first, or pass --force",
        )
    return found


def _refuse(found: list[Orphan], reason: str, separator: str = ": ") -> None:
    if found:
        raise click.ClickException(f"{', '.join(repr(orphan.name) for orphan in found)}{separator}{reason}")


def _sums(orphan: Orphan, steps: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return how many entries are taken, and how many stay, as the sum of all steps."""
    taken = left = 0
    with progress(orphan.name) as on_progress:
        for moved, stay in steps:
            taken, left = taken + moved, left + stay
            on_progress(taken + left, orphan.waiting)
    return taken, left


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
        return {"due": None, "payload": None, "problem": "not a valid entry"}
    try:
        payload, problem = CODECS[codec](entry.payload), None
    except (ValueError, RecursionError):
        payload, problem = repr(entry.payload), f"not {codec}"
    return {"due": _isoformat(entry.score), "payload": payload, "problem": problem}


def _print(rows: list[dict[str, Any]], as_json: bool, nothing: str) -> None:
    if rows or as_json:
        print_rows(rows, as_json, lambda width: _table(rows))
    else:
        say(nothing, err=True)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = new_table()
    add_columns(table, *(name.replace("_", " ") + (" (UTC)" if name in _TIMES else "") for name in rows[0]))
    for row in rows:
        table.add_row(*(text(_seconds(value) if name in _TIMES else value) for name, value in row.items()))
    return table


def _seconds(time: str | None) -> str | None:
    """Return a time of `_isoformat` as all tables show it."""
    return time if time is None or time.endswith(" ms") else shown(datetime.fromisoformat(time))


def _exactly(due_ms: int) -> datetime:
    """Return a due time as an aware datetime; OverflowError if it is later than the year 9999."""
    return to_datetime(0) + timedelta(milliseconds=due_ms)


def _isoformat(due_ms: int | None) -> str | None:
    try:
        return None if due_ms is None else _exactly(due_ms).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{due_ms} ms"


def _sentence(row: dict[str, Any], codec: str) -> str:
    taken = plural(row["taken"], "entry", "entries")
    if row["task"] is None:
        what = "would" if row["dry_run"] else "will"
        return f"{row['list']}: {taken} {what} be moved to the list when due."
    what = "would turn into" if row["dry_run"] else "turned into"
    left = f" Not {codec}, so left there: {plural(row['left'], 'entry', 'entries')}." if row["left"] else ""
    return f"{row['list']}: {taken} {what} {row['task']}.{left}"
