"""`celery -A app delayq schedule ...`: periodic tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

import click
import redis
from kombu.exceptions import OperationalError
from rich.table import Table
from rich.text import Text

from celery_delayq.basics.errors import DelayqError
from celery_delayq.basics.text import plural
from celery_delayq.cli.broker import delayq_channel
from celery_delayq.cli.command import LIST, OBJECT, Parsed, command, import_tasks, json_option, several
from celery_delayq.cli.output import (
    NARROW,
    add_columns,
    console,
    fitting,
    least_width,
    new_table,
    print_details,
    print_json,
    short_name,
    text,
)
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import shown, shown_span
from celery_delayq.options.scheduler import is_ours
from celery_delayq.queue.scripts import MAX_PAGE
from celery_delayq.schedule import django_celery_beat, redbeat
from celery_delayq.schedule.api import Schedule
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.encoding import written
from celery_delayq.schedule.found import Found
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.transport.named import check_known

#: How much a list leaves out if it is too wide, see `_table`. Terminals of `NARROW` columns or more show names in full.
_WIDE, _ALL = range(3), range(5)


@click.group()
def schedule() -> None:
    """Inspect and change periodic tasks."""


def _schedule(ctx: click.Context) -> Schedule:
    """Return the app's schedule. Only `run_now` raises an OperationalError: it sends outside of the channel."""
    app = ctx.obj.app
    app.finalize()
    return Schedule(app, partial(delayq_channel, app))


@command("list", schedule)
@json_option
def list_(ctx: click.Context, as_json: bool) -> None:
    """Show all periodic tasks."""
    import_tasks(ctx.obj.app)
    entries = list(_schedule(ctx))
    if as_json:
        for entry in entries:
            print_json(_data(entry))
        return
    if not entries:
        say("There are no periodic tasks. Those of the configuration appear once a planner has started.", err=True)
    out = console()
    width = out.width
    for start in range(0, len(entries), MAX_PAGE):
        table = table_of(entries[start : start + MAX_PAGE], width)
        out.width = max(width, least_width(table))
        out.print(table)
    for entry in entries:
        if entry.error:
            say(f"{entry.name}: {entry.error}")


def table_of(entries: Sequence[PeriodicTask], width: int) -> Table:
    """Return a table of entries, with as much as fits into so many columns. No name, schedule or word is cut."""
    return fitting((_table(entries, density) for density in (_ALL if width < NARROW else _WIDE)), width)


def _table(entries: Sequence[PeriodicTask], density: int) -> Table:
    """Return a table of entries.

    A dense one has, one after the other: short times; no past, and time zones in a second line; short names; no time
    that is left.
    """
    short = density >= 1
    table = new_table(dense=density >= 3)
    add_columns(table, "name", "task", "schedule", "next run (UTC)", firm=True)
    left = ["left"][: density < 4]
    add_columns(table, *left, right=True, firm=True)
    past = ["last run (UTC)", "runs"] if density < 2 else []
    add_columns(table, *past[:1], firm=True)
    add_columns(table, *past[1:], right=True, firm=True)
    add_columns(table, "status")
    now = datetime.now(timezone.utc)
    for entry in entries:
        task = short_name(entry.task) if density >= 3 else entry.task
        when = text(entry.when)
        if density >= 2:
            when = Text("\n(").join(when.split(" ("))
        future = (
            shown(entry.next_run, short=short),
            "-" if entry.next_run is None else shown_span(entry.next_run - now),
        )
        row = (*future[: 1 + len(left)], *(shown(entry.last_run, short=short), entry.runs)[: len(past)], entry.status)
        table.add_row(text(entry.name), text(task), when, *map(text, row))
    return table


@command("show", schedule)
@click.argument("name")
@json_option
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show a periodic task in full."""
    import_tasks(ctx.obj.app)
    entry = _schedule(ctx).get(name)
    data = _data(entry)
    print_details(data if as_json else {**data, "schedule": entry.when, "status": entry.status}, as_json)


#: An interval or a crontab expression, see `written`.
_WHEN = Parsed("when", written)

#: The options that define an entry.
_fields = several(
    click.option("--args", type=LIST, help="Arguments of the task, as a JSON list."),
    click.option("--kwargs", type=OBJECT, help="Keyword arguments of the task, as a JSON object."),
    click.option("--options", type=OBJECT, help="Options of apply_async, as a JSON object."),
    click.option(
        "--timing", type=OBJECT, help='Timing, as a JSON object: {"tz": "Europe/Berlin", "max_runs": 3, ...}.'
    ),
)


@command("add", schedule)
@click.argument("name")
@click.argument("task")
@click.argument("when", type=_WHEN)
@_fields
def add(ctx: click.Context, name: str, task: str, when: Any, timing: dict[str, Any] | None, **fields: Any) -> None:
    """Add a periodic task.

    WHEN is an interval such as 'every 1h 30m', 'every 5 minutes' or 90s, or a crontab expression such as
    '0 6 * * mon-fri' or '@daily'.
    """
    import_tasks(ctx.obj.app)
    check_known(ctx.obj.app, task)
    given = {**fields, "task": task, "schedule": when, "timing": timing}
    found = _schedule(ctx)
    _say_done(ctx, found.add_definition(Definition.of(name, given, ctx.obj.app)), "added")


@command("update", schedule)
@click.argument("name")
@click.option("--task", help="Name of the task.")
@click.option("--when", "schedule", type=_WHEN, help="See `schedule add`.")
@_fields
def update(ctx: click.Context, name: str, timing: dict[str, Any] | None, **fields: Any) -> None:
    """Change a periodic task that was added at run time. Options that you do not give stay as they are.

    --timing changes only the fields that it names; null restores a default. --args, --kwargs and --options replace
    the old value as a whole.
    """
    changes = {key: value for key, value in fields.items() if value is not None}
    if not changes and timing is None:
        raise click.UsageError("nothing to change: give --task, --when, --args, --kwargs, --options or --timing")
    import_tasks(ctx.obj.app)
    check_known(ctx.obj.app, changes.get("task"))
    _say_done(ctx, _schedule(ctx).update_fields(name, changes, timing or {}), "updated")


def _say_if_unplanned(ctx: click.Context) -> None:
    """Warn if the workers of the app do not plan."""
    if not is_ours(ctx.obj.app):
        say(
            "Warning: the workers of this app run no periodic tasks, so it runs only if another app's do. "
            'To change that, set beat_scheduler = "celery_delayq.beat:Scheduler", and restart the workers.',
            err=True,
        )


def _say_done(ctx: click.Context, entry: PeriodicTask, done: str) -> None:
    if not entry.is_registered:
        say(f"Warning: this app has no task {entry.task!r}. It will be sent anyway.", err=True)
    say(f"{entry.name} {done}.")
    _say_if_unplanned(ctx)


def _simple(name: str, done: str, help: str, *, needs_planner: bool = False) -> None:
    """Add a command that calls one method of the schedule with one entry."""

    @click.argument("entry", metavar="NAME")
    def run(ctx: click.Context, entry: str) -> None:
        getattr(_schedule(ctx), name)(entry)
        say(f"{entry} {done}.")
        if needs_planner:
            _say_if_unplanned(ctx)

    run.__doc__ = help
    command(name, schedule)(run)


_simple("remove", "removed", "Remove a periodic task that was added at run time.")
_simple("pause", "paused", "Pause a periodic task, and cancel its pending run.")
_simple("resume", "resumed", "Resume a paused periodic task.", needs_planner=True)


@command("run-now", schedule)
@click.argument("entry", metavar="NAME")
def run_now(ctx: click.Context, entry: str) -> None:
    """Send a periodic task now, in addition to its schedule."""
    try:
        result = _schedule(ctx).run_now(entry)
    except OperationalError as exc:
        raise click.ClickException(str(exc)) from exc
    except DelayqError:
        raise
    except (TypeError, ValueError) as exc:  # the arguments or options do not fit
        raise click.ClickException(f"cannot send {entry}: {exc}") from exc
    if not getattr(result, "was_new", True):
        raise click.ClickException(f"{entry} was not sent: task {result.id} holds its unique key")
    say(f"{entry} sent.")


_APPLY = click.option(
    "--apply", "is_real", is_flag=True, help="Add the entries. Without it, only report what would be done."
)


@command("import-redbeat", schedule)
@click.option("--prefix", help="Prefix of RedBeat's keys. Default: redbeat_key_prefix of the app.")
@click.option("--url", help="URL of RedBeat's Redis. Default: redbeat_redis_url of the app, or the broker.")
@_APPLY
def import_redbeat(ctx: click.Context, prefix: str | None, url: str | None, is_real: bool) -> None:
    """Add the entries of RedBeat. Its keys are not changed. Stop RedBeat first, or tasks will run twice."""
    app = ctx.obj.app
    prefix = prefix or app.conf.get("redbeat_key_prefix") or redbeat.PREFIX
    url = url or app.conf.get("redbeat_redis_url")
    found = _schedule(ctx)
    with delayq_channel(app) as channel:
        try:
            client = redis.Redis.from_url(url) if url else channel.plain_client
        except ValueError as exc:
            raise click.BadParameter(str(exc), param_hint="--url") from exc
        try:
            entries = list(redbeat.entries(client, app, prefix))
        except redis.RedisError as exc:
            raise click.ClickException(f"cannot read RedBeat's keys: {exc}") from exc
        _import(ctx, found, entries, is_real)


@command("import-django-celery-beat", schedule)
@_APPLY
def import_django_celery_beat(ctx: click.Context, is_real: bool) -> None:
    """Add the periodic tasks of django_celery_beat.

    Its tables are not changed. Stop celery beat first, or tasks will run twice.
    """
    found = _schedule(ctx)
    _import(ctx, found, list(django_celery_beat.entries(ctx.obj.app)), is_real)


def _import(ctx: click.Context, found: Schedule, entries: Sequence[Found], is_real: bool) -> None:
    """Add entries of another scheduler, or only say which ones would be added."""
    moved = 0
    for one in entries:
        problem = one.problem
        if one.definition is not None and one.name in found:
            problem = "an entry of that name exists already"
        if problem or one.definition is None:
            say(f"- {one.name}: skipped: {problem}")
            continue
        if is_real:
            found.add_definition(one.definition)
        moved += 1
        data = one.definition.data() or {}  # it is of JSON types
        timing = f", {data['timing']}" if data["timing"] else ""
        when = PeriodicTask(one.name, one.definition.task, data.get("schedule")).when
        say(f"+ {one.name}: {one.definition.task}, {when}{timing}")
    number = plural(moved, "entry", "entries")
    say(f"{number} added." if is_real else f"{number} can be added. Pass --apply to do so.")
    if is_real:
        _say_if_unplanned(ctx)


def _data(entry: PeriodicTask) -> dict[str, Any]:
    data = dict(vars(entry))
    for name in ("next_run", "last_run"):
        data[name] = data[name] and data[name].isoformat(timespec="milliseconds")
    return data
