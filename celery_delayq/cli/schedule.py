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
from celery.bin.base import CeleryCommand, handle_preload_options
from celery.utils.time import humanize_seconds
from kombu.exceptions import OperationalError
from rich.console import Console
from rich.table import Table

from celery_delayq.cli.broker import delayq_channel
from celery_delayq.errors import DelayqError
from celery_delayq.schedule import redbeat
from celery_delayq.schedule.api import PeriodicTask, Schedule

#: Columns of the output where it goes into a file.
_WIDTH = 140


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
    """Make a function a command of the group that Celery knows."""

    def decorate(function: Callable[..., None]) -> click.Command:
        made: click.Command = schedule.command(name=name, cls=CeleryCommand)(
            click.pass_context(handle_preload_options(function))
        )
        return made

    return decorate


@_command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_entries(ctx: click.Context, as_json: bool) -> None:
    """Show all periodic tasks."""
    with _schedule(ctx) as found:
        entries = list(found)
    if as_json:
        for entry in entries:
            click.echo(json.dumps(_data(entry)))
        return
    table = Table("name", "task", "schedule", "next run", "last run", "runs", "status")
    for entry in entries:
        table.add_row(
            entry.name,
            entry.task,
            _when(entry),
            _moment(entry.next_run),
            _moment(entry.last_run),
            str(entry.runs),
            _status(entry),
        )
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


@_command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show all that is known about a periodic task."""
    with _schedule(ctx) as found:
        entry = found.get(name)
    if as_json:
        click.echo(json.dumps(_data(entry)))
        return
    for key, value in {**_data(entry), "status": _status(entry)}.items():
        click.echo(f"{key + ':':<15}{'-' if value is None else value}")


@_command("add")
@click.argument("name")
@click.argument("task")
@click.argument("when")
@click.option("--args", "args", default="[]", help="Arguments of the task, a JSON list.")
@click.option("--kwargs", "kwargs", default="{}", help="Keyword arguments, a JSON object.")
@click.option("--options", "options", default="{}", help="Options of apply_async, a JSON object.")
@click.option("--timing", "timing", default="{}", help='{"tz": "Europe/Berlin", "max_runs": 3, ...}, a JSON object.')
def add(ctx: click.Context, name: str, task: str, when: str, args: str, kwargs: str, options: str, timing: str) -> None:
    """Add a periodic task: WHEN is seconds, or a crontab expression such as '0 6 * * mon-fri'."""
    given = {"args": args, "kwargs": kwargs, "options": options, "timing": timing}
    values = {key: _json(key, text, list if key == "args" else dict) for key, text in given.items()}
    with _schedule(ctx) as found:
        timing_values = values.pop("timing")
        entry = found.add(name, task, _seconds_or(when), **values, **timing_values)
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


def _seconds_or(when: str) -> float | str:
    try:
        return float(when)
    except ValueError:
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


def _moment(when: datetime | None) -> str:
    if when is None:
        return "-"
    away_s = (when - datetime.now(timezone.utc)).total_seconds()
    span = humanize_seconds(abs(away_s)) or "a moment"
    return f"{when.isoformat(sep=' ', timespec='seconds')} ({f'in {span}' if away_s > 0 else f'{span} ago'})"


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
