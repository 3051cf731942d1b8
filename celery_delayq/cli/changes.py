"""`celery -A app delayq cancel`, `reschedule`, `run-now` and `update`: change waiting tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

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
    several,
    usage_errors,
    yes_option,
)
from celery_delayq.cli.listing import check_task, criteria_of, filters, not_waiting, ready_option
from celery_delayq.cli.output import print_json, progress, say_changed
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import SPAN, WHEN, at, shown
from celery_delayq.inspector import Inspector
from celery_delayq.inspector.bulk import Action, Chunk, change_all
from celery_delayq.transport.messages import updated

#: How many ids one call of the inspector gets.
_BATCH = 100


class _Words(NamedTuple):
    """The words for an action: what to do, how; what is being done, what was done; the name of the number in JSON."""

    verb: str
    how: str
    doing: str
    done: str
    name: str


_WORDS: dict[Action, _Words] = {
    "cancel": _Words("Cancel", " for good", "cancelling", "cancelled", "cancelled"),
    "reschedule": _Words("Reschedule", "", "rescheduling", "rescheduled", "rescheduled"),
    "run_now": _Words("Queue", " now", "queueing", "queued", "moved"),
}

#: Which tasks a command changes, and how; see `_act`.
_choosing = several(
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    filters,
    click.option("--all", "everything", is_flag=True, help="All waiting tasks."),
    click.option("--dry-run", is_flag=True, help="Only count the matching tasks. Needs filters or --all."),
    yes_option,
    json_option,
)


@command("cancel")
@_choosing
@ready_option("Also cancel tasks that are in their queues.")
def cancel(ctx: click.Context, **given: Any) -> None:
    """Remove waiting tasks for good, and with --ready those that no worker has fetched.

    Give the IDs of the tasks, or filters, or --all.
    """
    _act(ctx, "cancel", **given)


@command("reschedule")
@_choosing
@click.option("--countdown", type=SPAN, help="New due time from now: seconds, or 30m, 2h, 1h30m.")
@click.option("--eta", type=WHEN, help="New due time: ISO 8601, or relative to now as +30m.")
def reschedule(ctx: click.Context, countdown: timedelta | None, eta: datetime | timedelta | None, **given: Any) -> None:
    """Give waiting tasks a new due time. If it is in the past, they move to their queues at once.

    Give the IDs of the tasks, or filters, or --all.
    """
    if (countdown is None) == (eta is None):
        raise click.UsageError("give either --countdown or --eta")
    _act(ctx, "reschedule", eta if countdown is None else countdown, **given)


@command("run-now")
@_choosing
def run_now(ctx: click.Context, **given: Any) -> None:
    """Move waiting tasks to the back of their queues.

    Give the IDs of the tasks, or filters, or --all.
    """
    _act(ctx, "run_now", **given)


def _act(
    ctx: click.Context,
    action: Action,
    when: datetime | timedelta | None = None,
    *,
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    ready: bool = False,
    **chosen: Any,
) -> None:
    """Change the tasks with these ids, or those that match; all get the same time."""
    filtered = any(value is not None for value in chosen.values())
    if (bool(ids), filtered, everything).count(True) != 1:
        raise click.UsageError("give either task ids, or filters (--queue, --task, ...), or --all")
    if ids and dry_run:
        raise click.UsageError("--dry-run works only with filters or --all: to look at one task, use `show ID`")
    with inspecting(ctx.obj.app) as inspector, usage_errors():
        eta = at(when, inspector.lists.now_ms())
        if ids:
            _change(ctx, ids, _WORDS[action].done, _by_ids(inspector, action, eta, ready), as_json, ready=ready)
        else:
            _change_matching(ctx, inspector, action, chosen, eta, dry_run, yes, ready, as_json)


def _by_ids(
    inspector: Inspector, action: Action, eta: datetime | None, ready: bool
) -> Callable[[Sequence[str]], dict[str, bool]]:
    if eta is not None:
        return partial(inspector.reschedule, eta=eta)
    return partial(inspector.cancel, ready=ready) if action == "cancel" else inspector.run_now


def _change_matching(
    ctx: click.Context,
    inspector: Inspector,
    action: Action,
    chosen: Mapping[str, Any],
    eta: datetime | None,
    dry_run: bool,
    yes: bool,
    ready: bool,
    as_json: bool,
) -> None:
    """Change all tasks that match, after a question. Exits with 1 if there are none, or one was refused."""
    criteria = criteria_of(inspector, chosen)
    words = _WORDS[action]

    def run(what: str, only_count: bool) -> Chunk:
        with progress(what) as told:
            options: Any = {"eta": eta, "dry_run": only_count, "ready": ready, "on_progress": told}
            return change_all(inspector.lists, action, criteria, **options)

    chunk = run("counting", True) if dry_run or not yes else None
    if not dry_run and (chunk is None or chunk.changed):
        if chunk is not None:
            to = f" to {shown(eta)} UTC" if eta is not None else words.how
            confirm(f"{words.verb} {plural(chunk.changed)}{to}?", yes)
        chunk = run(words.doing, False)
    assert chunk is not None
    if not (chunk.changed or chunk.late or chunk.refused):
        check_task(ctx.obj.app, criteria.task)
    if chunk.refused:
        say(f"cannot reschedule {plural(chunk.refused)} of another program: cancel them, or run them now", err=True)
    if as_json:
        matched = chunk.changed + chunk.late + chunk.refused
        print_json({words.name: 0 if dry_run else chunk.changed, "matched": matched, "dry_run": dry_run})
    else:
        say(f"{plural(chunk.changed)} {'would be ' if dry_run else ''}{words.done}.")
    if chunk.refused or not chunk.changed:
        ctx.exit(1)


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
            say(f"Error: {not_waiting(task_id, ready, can_be_ready=done == _WORDS['cancel'].done)}", err=True)
    say_changed(ctx, answers, done, "task", as_json)
