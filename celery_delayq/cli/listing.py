"""`celery -A app delayq list` and `show`: look at waiting and at ready tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, get_args

import click
from rich.table import Table

from celery_delayq.basics.text import with_app
from celery_delayq.cli.broker import check_complete, inspecting, queue_option
from celery_delayq.cli.command import (
    Decorator,
    body_option,
    command,
    import_tasks,
    json_option,
    page_options,
    several,
    usage_errors,
)
from celery_delayq.cli.output import (
    NARROW,
    add_columns,
    new_table,
    print_details,
    print_rows,
    progress,
    say_rest,
    short_name,
    text,
)
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import WHEN, at, shown, shown_span
from celery_delayq.inspector import Inspector, pages
from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.pages import Criteria, Page
from celery_delayq.inspector.task import ScheduledTask, State
from celery_delayq.queue.scripts import MAX_PAGE
from celery_delayq.transport.named import check_known

#: The options that select tasks; see `criteria_of`.
filters = several(
    queue_option(),
    click.option("--task", help="Only tasks of this name."),
    click.option("--due-after", type=WHEN, help="Only tasks due at this time or later."),
    click.option("--due-before", type=WHEN, help="Only tasks due before this time."),
    click.option("--text", help="Only tasks whose arguments contain this text, as they are shown."),
)


def criteria_of(inspector: Inspector, chosen: Mapping[str, Any]) -> Criteria:
    """Return the criteria that the options of `filters` stand for.

    Raises:
        click.ClickException: there is no such queue.
        click.UsageError: a time is out of range, or the text is empty.
    """
    inspector.check_queue(chosen["queue"])
    now_ms = inspector.lists.now_ms()
    times = {name: at(chosen[name], now_ms) for name in ("due_after", "due_before")}
    with usage_errors():
        return Criteria.of(**{**chosen, **times})


def check_task(app: Any, task: str | None) -> None:
    """Check the name of a task for which nothing was found; see `check_known`. None passes."""
    if task is not None:
        import_tasks(app)
        check_known(app, task)


def ready_option(text: str) -> Decorator:
    """Return the option `--ready`."""
    return click.option("--ready", is_flag=True, help=text)


def not_waiting(task_id: str, ready: bool, *, can_be_ready: bool = True) -> str:
    """Return the message for a task that is not waiting.

    Args:
        task_id: its id.
        ready: whether it is not in a queue either.
        can_be_ready: whether the command has the option `--ready`.
    """
    if ready:
        return (
            f"task {task_id} is neither waiting nor in a queue: a worker has it or had it, it was cancelled, is a dead "
            "letter (`dead list --text` finds it), or was never sent"
        )
    hint = " (--ready looks there, too)" if can_be_ready else ""
    return (
        f"task {task_id} is not waiting: it may be in its queue{hint} or with a worker, have run, have been cancelled, "
        "or have never been delayed"
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
        args = None if task.args_text is None and task.kwargs_text is None else _call(task)
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
    kwargs = "" if task.kwargs_text in (None, "{}") else f" {task.kwargs_text}"
    return f"{task.args_text or ''}{kwargs}"


def _batches(inspector: Inspector, criteria: Criteria, limit: float, cursor: str | None) -> Iterator[Page]:
    """Yield the tasks, at most MAX_PAGE at a time to bound memory. Only a search shows progress."""
    lists, examined = inspector.lists, 0
    while limit:
        tasks: list[ScheduledTask] = []
        lost = Lost()
        with ExitStack() as stack:
            on_progress = stack.enter_context(progress("searching")) if criteria.is_search else None
            total = pages.to_examine(lists, criteria) if on_progress else 0
            while size := min(limit, MAX_PAGE - len(tasks)):
                page = pages.page(lists, criteria, limit=int(size), cursor=cursor, partial=True)
                tasks += page
                cursor, lost = page.cursor, lost | page.lost
                limit, examined = limit - len(page), examined + page.examined
                if on_progress:
                    on_progress(examined, max(examined, total))
                if cursor is None:
                    break
        yield Page(tuple(tasks), cursor, examined, lost)
        if cursor is None:
            return


@command("list")
@filters
@click.option(
    "--state",
    type=click.Choice(get_args(State)),
    default="delayed",
    show_default=True,
    help="Show tasks that wait, or those that are in their queues.",
)
@page_options("tasks")
@json_option
def list_(ctx: click.Context, limit: int, cursor: str | None, everything: bool, as_json: bool, **chosen: Any) -> None:
    """Show waiting tasks of all queues, in due order; or ready ones, queue by queue, as workers will take them."""
    number, lost = 0, Lost()
    with inspecting(ctx.obj.app) as inspector, usage_errors():
        criteria = criteria_of(inspector, chosen)
        for page in _batches(inspector, criteria, math.inf if everything else limit, cursor):
            number, cursor, lost = number + len(page), page.cursor, lost | page.lost
            if page.tasks:
                print_rows((task.to_dict() for task in page), as_json, partial(task_table, page))
        if not (number or lost or cursor):
            check_task(ctx.obj.app, criteria.task)
    if not (number or lost or as_json):
        say(f"No {'ready' if chosen['state'] == 'ready' else 'waiting'} tasks match.", err=True)
    say_rest(cursor, "tasks", as_json)
    check_complete(lost)


@command("show")
@click.argument("task_id", metavar="ID")
@ready_option("Also look for it in the queues.")
@body_option
@json_option
def show(ctx: click.Context, task_id: str, ready: bool, with_body: bool, as_json: bool) -> None:
    """Show a waiting task in full, or with --ready one that no worker has fetched. Nothing is unpickled."""
    with inspecting(ctx.obj.app) as inspector:
        task = inspector.get([task_id], ready=ready)[task_id]
    if task is None:
        raise click.ClickException(not_waiting(task_id, ready))
    fields = task.to_dict()
    if with_body:
        fields["body"] = task.body
    if not as_json:
        fields["time_left"] = shown_span(task.time_left)
        fields = {"enqueued" if name == "offered" else name: value for name, value in fields.items()}
    print_details(fields, as_json)
    if task.state == "ready" and not as_json:
        say(with_app(f"It is in its queue. To cancel it: `celery -A ... delayq cancel {task.id} --ready`"), err=True)
