"""`celery -A app delayq cancel`, `reschedule`, `run-now` and `update`: change waiting tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from celery_delayq.basics.text import plural
from celery_delayq.cli.broker import inspecting
from celery_delayq.cli.command import (
    LIST,
    OBJECT,
    command,
    confirm,
    import_tasks,
    json_option,
    usage_errors,
    yes_option,
)
from celery_delayq.cli.listing import criteria_of, filters, not_waiting, ready_option
from celery_delayq.cli.output import print_json, progress, say_changed
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import SPAN, WHEN, at
from celery_delayq.inspector import Inspector
from celery_delayq.transport.messages import updated

#: How many ids one call of the inspector gets.
_BATCH = 100


@command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filters
@click.option("--all", "everything", is_flag=True, help="Cancel all waiting tasks.")
@ready_option("Also cancel tasks that are in their queues.")
@click.option("--dry-run", is_flag=True, help="Only count the matching tasks. Needs filters or --all.")
@yes_option
@json_option
def cancel(
    ctx: click.Context,
    ids: tuple[str, ...],
    everything: bool,
    ready: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Remove waiting tasks for good, and with --ready those that no worker has fetched.

    Give the IDs of the tasks, or filters, or --all.
    """
    filtered = any(value is not None for value in chosen.values())
    if (bool(ids), filtered, everything).count(True) != 1:
        raise click.UsageError("give either task ids, or filters (--queue, --task, ...), or --all")
    if ids and dry_run:
        raise click.UsageError("--dry-run works only with filters or --all: to look at one task, use `show ID`")
    with inspecting(ctx.obj.app) as inspector:
        if ids:
            _change(ctx, ids, "cancelled", partial(inspector.cancel, ready=ready), as_json, ready=ready)
            return
        number = _cancel_all(inspector, chosen, dry_run, yes, ready)
    if as_json:
        print_json({"cancelled": 0 if dry_run else number, "matched": number, "dry_run": dry_run})
    else:
        say(f"{plural(number)} {'would be ' if dry_run else ''}cancelled.")
    if not number:
        ctx.exit(1)


def _cancel_all(inspector: Inspector, chosen: dict[str, Any], dry_run: bool, yes: bool, ready: bool) -> int:
    criteria = criteria_of(inspector, chosen)

    def run(what: str, only_count: bool) -> int:
        with progress(what) as told:
            return inspector.cancel_all(criteria, everything=True, dry_run=only_count, ready=ready, on_progress=told)

    if dry_run or not yes:
        number = run("counting", True)
        if dry_run or not number:
            return number
        confirm(f"Cancel {plural(number)} for good?", yes)
    return run("cancelling", False)


@command("reschedule")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--countdown", type=SPAN, help="New due time from now: seconds, or 30m, 2h, 1h30m.")
@click.option("--eta", type=WHEN, help="New due time: ISO 8601, or relative to now as +30m.")
@json_option
def reschedule(
    ctx: click.Context,
    ids: tuple[str, ...],
    countdown: timedelta | None,
    eta: datetime | timedelta | None,
    as_json: bool,
) -> None:
    """Give the tasks with these IDs a new due time. If it is in the past, they move to their queues at once."""
    if (countdown is None) == (eta is None):
        raise click.UsageError("give either --countdown or --eta")
    with inspecting(ctx.obj.app) as inspector, usage_errors():
        # All tasks get the same time.
        when = at(eta if countdown is None else countdown, inspector.lists.now_ms())
        _change(ctx, ids, "rescheduled", lambda batch: inspector.reschedule(batch, eta=when), as_json)


@command("run-now")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
def run_now(ctx: click.Context, ids: tuple[str, ...], as_json: bool) -> None:
    """Move the tasks with these IDs to the back of their queues."""
    with inspecting(ctx.obj.app) as inspector:
        _change(ctx, ids, "moved to their queues", inspector.run_now, as_json)


@command("update")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--args", type=LIST, help="All positional arguments, as a JSON list.")
@click.option("--kwargs", type=OBJECT, help="All keyword arguments, as a JSON object.")
@click.option("--priority", type=click.IntRange(0, 9), help="The new priority.")
@json_option
def update(
    ctx: click.Context,
    ids: tuple[str, ...],
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    priority: int | None,
    as_json: bool,
) -> None:
    """Give the tasks with these IDs other arguments, or another priority. What is not given stays as it is."""
    if args is None and kwargs is None and priority is None:
        raise click.UsageError("give --args, --kwargs or --priority")
    import_tasks(ctx.obj.app)
    change = partial(updated, ctx.obj.app, args=args, kwargs=kwargs, priority=priority)
    with inspecting(ctx.obj.app) as inspector, usage_errors():
        _change(ctx, ids, "updated", lambda batch: inspector.update(batch, change, priority), as_json)


def _change(
    ctx: click.Context,
    ids: Sequence[str],
    done: str,
    change: Callable[[Sequence[str]], dict[str, bool]],
    as_json: bool,
    *,
    ready: bool = False,
) -> None:
    """Change tasks and report which were changed. Exits with 1 if one of them was not waiting."""
    answers: dict[str, bool] = {}
    wanted = list(dict.fromkeys(ids))
    with progress(done) as on_progress:
        for start in range(0, len(wanted), _BATCH):
            answers.update(change(wanted[start : start + _BATCH]))
            on_progress(len(answers), len(wanted))
    for task_id, waited in answers.items():
        if not waited:
            say(f"Error: {not_waiting(task_id, ready)}", err=True)
    say_changed(ctx, answers, done, "task", as_json)
