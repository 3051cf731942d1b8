"""`celery -A app delayq check`: whether all is well, for people, scripts and probes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from rich.text import Text

from celery_delayq.basics.text import plural
from celery_delayq.cli.broker import delayq_channel
from celery_delayq.cli.command import command, import_tasks, json_option
from celery_delayq.cli.output import add_columns, console, new_table, print_json, text
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import SPAN
from celery_delayq.health.advice import advice_for, with_app
from celery_delayq.health.called import check_called
from celery_delayq.health.check import check_broker, check_only_overdue
from celery_delayq.health.finding import Finding, Level, not_checked, sentence
from celery_delayq.health.options import check_options

#: How long to wait for each answer, in seconds.
_PATIENCE_S = 2.0

#: What Redis says if a user may not run a command without which nothing can be checked.
_REFUSED = re.compile(r"no permissions to run the '([\w|]+)' command")

#: What to do if the server cannot be used, and does not say why.
_NOTHING_KNOWN = "Check the broker URL, and whether the server runs: nothing works without it."

_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "bold red"}


@command("check")
@click.option("--strict", is_flag=True, help="Exit with 1 also if there are only warnings.")
@click.option(
    "--max-overdue",
    type=SPAN,
    metavar="SPAN",
    help="Check only this: exit with 1 if a message has been overdue for longer, for example 60 or 5m.",
)
@json_option
def check(ctx: click.Context, strict: bool, max_overdue: timedelta | None, as_json: bool) -> None:
    """Check servers, permissions, clocks, settings, and who runs.

    Each line is ok, a note, a warning or an error, with what to do. The exit code is 1 if there is an error. Nothing is
    changed.
    """
    if max_overdue is not None and max_overdue < timedelta(0):
        raise click.BadParameter("must not be negative", ctx, param_hint="--max-overdue")
    found = _all(ctx.obj.app) if max_overdue is None else _overdue(ctx.obj.app, max_overdue.total_seconds())
    findings = [replace(finding, advice=with_app(finding.advice)) for finding in found]
    if as_json:
        for finding in findings:
            fields = vars(finding) | {"level": finding.level.value}
            print_json({name: value for name, value in fields.items() if name != "was_checked"})
    else:
        _print(findings)
    bad = {Level.ERROR, Level.WARNING} if strict else {Level.ERROR}
    if any(finding.level in bad for finding in findings):
        ctx.exit(1)


def _all(app: Any) -> list[Finding]:
    findings = [*check_called(app), *check_options(app)]
    import_tasks(app)
    try:
        with delayq_channel(app, patience_s=_PATIENCE_S) as channel:
            found = check_broker(app, channel)
    except click.ClickException as exc:
        cannot = _cannot(app, exc)
        is_known = any(finding.message == cannot.message for finding in findings)
        found = [not_checked("correct the settings first", "server") if is_known else cannot]
    return [*findings, *found]


def _overdue(app: Any, most_s: float) -> list[Finding]:
    try:
        with delayq_channel(app, patience_s=_PATIENCE_S) as channel:
            return check_only_overdue(app, channel, most_s=most_s)
    except click.ClickException as exc:
        return [_cannot(app, exc)]


def _cannot(app: Any, exc: click.ClickException) -> Finding:
    """Return the finding that the broker cannot be checked."""
    refused = _REFUSED.search(exc.message)
    if refused is None:
        is_of_server = isinstance(exc.__cause__, (OperationalError, RedisError))
        advice = advice_for(exc.message, _NOTHING_KNOWN if is_of_server else "")  # others say what to do
        return Finding("server", Level.ERROR, sentence(exc.message), advice)
    advice = "Let an administrator allow it, with the command below, and check again."
    user = app.connection_for_write().userid or "default"
    return Finding("server", Level.ERROR, sentence(exc.message), advice, f"ACL SETUSER {user} +{refused[1]}")


def _print(findings: Sequence[Finding]) -> None:
    table = new_table()
    add_columns(table, "", "check", firm=True)
    add_columns(table, "finding")
    servers = {name for finding in findings for name in finding.servers}
    for finding in findings:
        level = Text(finding.level.value, _STYLES[finding.level])
        table.add_row(level, text(finding.check), text(finding.told(len(servers))))
        if finding.advice:
            table.add_row("", "", text(finding.advice))
    out = console()
    out.print(table)
    for line in dict.fromkeys(finding.command for finding in findings if finding.command):
        out.print()
        say(line)  # in one line, to copy
    counts = Counter(finding.level for finding in findings)
    out.print(f"\n{plural(counts[Level.ERROR], 'error')}, {plural(counts[Level.WARNING], 'warning')}.")
