"""`celery -A app delayq list` and `show`: look at waiting tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import click
from rich.table import Table

from celery_delayq.cli.broker import check_complete, inspecting, queue_option
from celery_delayq.cli.command import body_option, command, json_option, usage_errors
from celery_delayq.cli.output import (
    NARROW,
    add_columns,
    console,
    new_table,
    print_details,
    print_json,
    progress,
    short_name,
    text,
)
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import When, at, shown, shown_span
from celery_delayq.inspector import Inspector, pages
from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.pages import Criteria
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.queue.scripts import MAX_PAGE


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select tasks; see `criteria_of`."""
    for option in (
        click.option("--text", help="Only tasks whose arguments contain this text, as they are shown."),
        click.option("--due-before", type=When(), help="Only tasks due before this time."),
        click.option("--due-after", type=When(), help="Only tasks due at this time or later."),
        click.option("--task", help="Only tasks of this name."),
        queue_option(),
    ):
        function = option(function)
    return function


def criteria_of(
    inspector: Inspector,
    *,
    queue: str | None,
    task: str | None,
    due_after: datetime | timedelta | None,
    due_before: datetime | timedelta | None,
    text: str | None,
) -> Criteria:
    """Return the criteria that the options of `filters` stand for.

    Raises:
        click.ClickException: there is no such queue.
        click.UsageError: a time is out of range, or the text is empty.
    """
    inspector.check_queue(queue)
    now_ms = inspector.lists.now_ms()
    with usage_errors():
        after, before = at(due_after, now_ms), at(due_before, now_ms)
        return Criteria.of(queue=queue, task=task, due_after=after, due_before=before, text=text)


def not_waiting(task_id: str) -> str:
    """Return the message for a task that is not waiting."""
    return (
        f"task {task_id} is not waiting: it may be in its queue or with a worker, may have run, may have been "
        "cancelled, or was never delayed; a task that Java offered is not found by its id, but by `cancel --task` and "
        "`--text`"
    )


def task_table(tasks: Iterable[ScheduledTask], width: int, title: str | None = None) -> Table:
    """Return a table of tasks for a console that is `width` columns wide. Arguments are cut to fit."""
    narrow = width < NARROW
    table = new_table(title, dense=narrow)
    add_columns(table, "due (UTC)", firm=True)
    add_columns(table, "left", right=True, firm=True)
    add_columns(table, "id", firm=True)
    add_columns(table, "task", "args", "queue")
    add_columns(table, "prio", right=True, firm=True)
    for task in tasks:
        args = None if task.args is None and task.kwargs is None else _call(task)
        table.add_row(
            text(shown(task.due, short=narrow)),
            text(shown_span(task.time_left)),
            text(task.id),
            text(short_name(task.name) if narrow else task.name, one_line=narrow),
            text(args, one_line=True),
            text(task.queue, one_line=narrow),
            text(task.priority),
        )
    return table


def _call(task: ScheduledTask) -> str:
    kwargs = "" if task.kwargs in (None, "{}") else f" {task.kwargs}"
    return f"{task.args or ''}{kwargs}"


class _Listing:
    """Reads tasks batch by batch. `cursor` is where the rest starts, or None at the end. `lost` is what is left out."""

    def __init__(self, inspector: Inspector, criteria: Criteria, limit: int | None, cursor: str | None) -> None:
        self.cursor = cursor
        self.lost = Lost()
        self._inspector = inspector
        self._criteria = criteria
        self._left = math.inf if limit is None else limit
        self._is_at_end = False
        self._examined = 0

    def batch(self) -> list[ScheduledTask]:
        """Return the next tasks, at most MAX_PAGE to bound memory; an empty list at the end."""
        tasks: list[ScheduledTask] = []
        with self._progress() as on_progress:
            while not self._is_at_end and (size := min(self._left, MAX_PAGE - len(tasks))):
                page = pages.page(
                    self._inspector.lists, self._criteria, limit=int(size), cursor=self.cursor, partial=True
                )
                tasks += page
                self.cursor = page.cursor
                self.lost |= page.lost
                self._is_at_end = page.cursor is None
                self._left -= len(page)
                self._examined += page.examined
                on_progress(self._examined)
        return tasks

    @contextmanager
    def _progress(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reports how many tasks were examined. Only a search shows progress."""
        if not self._criteria.is_search:
            yield lambda examined: None
            return
        total = pages.to_examine(self._inspector.lists, self._criteria)
        with progress("searching") as on_progress:
            yield lambda examined: on_progress(examined, max(examined, total))


@command("list")
@filters
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Show at most this many tasks."
)
@click.option("--cursor", help="Continue where the previous list ended.")
@click.option("--all", "everything", is_flag=True, help="Show all tasks, without a limit.")
@json_option
def list_(ctx: click.Context, limit: int, cursor: str | None, everything: bool, as_json: bool, **chosen: Any) -> None:
    """Show waiting tasks of all queues, in due order."""
    with inspecting(ctx.obj.app) as inspector:
        criteria = criteria_of(inspector, **chosen)
        listing = _Listing(inspector, criteria, None if everything else limit, cursor)
        with usage_errors():
            batch = listing.batch()
            if not batch and not listing.lost and not as_json:
                say("No waiting tasks match.", err=True)
            while batch:
                _write(batch, as_json)
                batch = listing.batch()
    if listing.cursor is not None and as_json:
        print_json({"cursor": listing.cursor})
    elif listing.cursor is not None:
        say(f"There may be more tasks: continue with --cursor {listing.cursor}, or show all with --all.", err=True)
    check_complete(listing.lost)


def _write(tasks: Sequence[ScheduledTask], as_json: bool) -> None:
    if not as_json:
        out = console()
        out.print(task_table(tasks, out.width))
        return
    for task in tasks:
        print_json(task.to_dict())


@command("show")
@click.argument("task_id", metavar="ID")
@body_option
@json_option
def show(ctx: click.Context, task_id: str, with_body: bool, as_json: bool) -> None:
    """Show a waiting task in full. Nothing is unpickled."""
    with inspecting(ctx.obj.app) as inspector:
        task = inspector.get([task_id])[task_id]
    if task is None:
        raise click.ClickException(not_waiting(task_id))
    fields = task.to_dict()
    if with_body:
        fields["body"] = task.body
    if not as_json:
        fields["time_left"] = shown_span(task.time_left)
    print_details(fields, as_json)
