"""`celery -A app delayq schedule ...`: periodic tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click
import redis
from celery.utils.time import humanize_seconds
from kombu.exceptions import OperationalError

from celery_delayq.cli.broker import delayq_channel
from celery_delayq.cli.command import command, json_option
from celery_delayq.cli.output import NARROW, add_columns, console, new_table, print_details, print_json, text
from celery_delayq.cli.times import Span, shown, shown_span
from celery_delayq.errors import DelayqError
from celery_delayq.schedule import redbeat
from celery_delayq.schedule.api import PeriodicTask, Schedule


@click.group()
def schedule() -> None:
    """Periodic tasks: see and change them."""


@contextmanager
def _schedule(ctx: click.Context) -> Iterator[Schedule]:
    """Give the app's schedule; what goes wrong is a message, not a traceback."""
    app = ctx.obj.app

    @contextmanager
    def channel() -> Iterator[Any]:
        with delayq_channel(app) as (_, found):
            yield found

    app.finalize()
    try:
        yield Schedule(app, channel)
    except (DelayqError, OperationalError) as exc:
        raise click.ClickException(str(exc)) from exc


def _command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command of the group; see `command`."""

    def decorate(function: Callable[..., None]) -> click.Command:
        made = command(name)(function)
        schedule.add_command(made)
        return made

    return decorate


@_command("list")
@json_option
def list_(ctx: click.Context, as_json: bool) -> None:
    """Show all periodic tasks."""
    with _schedule(ctx) as found:
        entries = list(found)
    if as_json:
        for entry in entries:
            print_json(_data(entry))
    elif entries:
        _print(entries)
    else:
        click.echo("There are no periodic tasks.", err=True)


def _print(entries: list[PeriodicTask]) -> None:
    out = console()
    narrow = out.width < NARROW
    table = new_table(dense=narrow)
    add_columns(table, "name", "task", "schedule")
    add_columns(table, "next run (UTC)", "in", "last run (UTC)", "runs", firm=True)
    add_columns(table, "status")
    now = datetime.now(timezone.utc)
    for entry in entries:
        table.add_row(
            text(entry.name),
            text(entry.task),
            text(_when(entry)),
            shown(entry.next_run, short=narrow),
            "-" if entry.next_run is None else shown_span(entry.next_run - now),
            shown(entry.last_run, short=narrow),
            str(entry.runs),
            text(_status(entry)),
        )
    out.print(table)


@_command("show")
@click.argument("name")
@json_option
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show all that is known about a periodic task."""
    with _schedule(ctx) as found:
        entry = found.get(name)
    data = _data(entry)
    print_details(data if as_json else {**data, "status": _status(entry)}, as_json)


@_command("add")
@click.argument("name")
@click.argument("task")
@click.argument("when")
@click.option("--args", "args", default="[]", help="Arguments of the task, a JSON list.")
@click.option("--kwargs", "kwargs", default="{}", help="Keyword arguments, a JSON object.")
@click.option("--options", "options", default="{}", help="Options of apply_async, a JSON object.")
@click.option("--timing", "timing", default="{}", help='{"tz": "Europe/Berlin", "max_runs": 3, ...}, a JSON object.')
def add(ctx: click.Context, name: str, task: str, when: str, args: str, kwargs: str, options: str, timing: str) -> None:
    """Add a periodic task: WHEN is a span such as 90s or 1h30m, or a crontab expression such as '0 6 * * mon-fri'."""
    given = {"args": args, "kwargs": kwargs, "options": options, "timing": timing}
    values = {key: _json(key, text, list if key == "args" else dict) for key, text in given.items()}
    with _schedule(ctx) as found:
        timing_values = values.pop("timing")
        entry = found.add(name, task, _schedule_of(when), **values, **timing_values)
    if not entry.is_registered:
        click.echo(f"This app has no task {task!r}; it is sent all the same.", err=True)
    click.echo(f"{name} added.")


def _json(name: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise click.UsageError(f"--{name} is no JSON: {exc}") from exc
    if not isinstance(value, kind):
        raise click.UsageError(f"--{name} must be a JSON {'list' if kind is list else 'object'}")
    return value


def _schedule_of(when: str) -> float | str:
    try:
        return Span().convert(when, None, None).total_seconds()
    except click.BadParameter:
        return when


def _simple(name: str, done: str, help: str) -> None:
    """Add a command that does one thing with one entry."""

    @click.argument("entry")
    def run(ctx: click.Context, entry: str) -> None:
        with _schedule(ctx) as found:
            getattr(found, name)(entry)
        click.echo(f"{entry} {done}.")

    run.__doc__ = help
    _command(name.replace("_", "-"))(run)


_simple("remove", "removed", "Remove a periodic task that was added at run time.")
_simple("pause", "paused", "Stop a periodic task, and withdraw its pending occurrence.")
_simple("resume", "resumed", "Let a paused periodic task run again.")
_simple("run_now", "sent", "Send a periodic task now, besides its schedule.")


@_command("import-redbeat")
@click.option("--prefix", help="Prefix of its keys; redbeat_key_prefix of the app by default.")
@click.option("--url", help="Its Redis; redbeat_redis_url of the app, or the broker, by default.")
@click.option("--apply", "is_real", is_flag=True, help="Add the entries; without it, only say what would be done.")
def import_redbeat(ctx: click.Context, prefix: str | None, url: str | None, is_real: bool) -> None:
    """Add the entries of RedBeat. It changes nothing of RedBeat's; stop that first, or tasks run twice."""
    app = ctx.obj.app
    prefix = prefix or app.conf.get("redbeat_key_prefix") or redbeat.PREFIX
    url = url or app.conf.get("redbeat_redis_url")
    with _schedule(ctx) as found, delayq_channel(app) as (_, channel):
        client = redis.Redis.from_url(url) if url else channel.plain_client
        moved = 0
        for one in redbeat.entries(client, app, prefix):
            problem = one.problem
            if one.definition is not None and one.name in found:
                problem = "there is an entry of that name already"
            if problem or one.definition is None:
                click.echo(f"- {one.name}: left out: {problem}")
                continue
            if is_real:
                found.add_definition(one.definition)
            moved += 1
            click.echo(f"+ {one.name}: {one.definition.task}, {one.definition.data()['schedule']}")  # type: ignore[index]
    click.echo(f"{moved} entries added." if is_real else f"{moved} entries to add; --apply adds them.")


def _data(entry: PeriodicTask) -> dict[str, Any]:
    data = asdict(entry)
    for name in ("next_run", "last_run"):
        data[name] = data[name] and data[name].isoformat(timespec="milliseconds")
    return data


def _when(entry: PeriodicTask) -> str:
    given = entry.schedule
    if not isinstance(given, dict):
        return str(given or "-")
    if "every" in given:
        return f"every {humanize_seconds(given['every'])}"
    zone = entry.timing.get("tz")
    text = given.get("crontab") or f"{given['solar']} at {given['lat']}, {given['lon']}"
    return f"{text} ({zone})" if zone else text


def _status(entry: PeriodicTask) -> str:
    if entry.error:
        return f"error: {entry.error}"
    if entry.paused:
        return "paused"
    if not entry.timing.get("enabled", True):
        return "disabled"
    if not entry.is_registered:
        return "unknown task"
    if entry.next_run is None:
        return "ended" if entry.runs else "no planner has seen it"
    return "planned"
