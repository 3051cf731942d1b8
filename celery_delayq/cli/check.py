"""`celery -A app delayq check`: whether all is well, for people, scripts and probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import click
from rich.text import Text

from celery_delayq.basics.finding import Finding, Level
from celery_delayq.basics.text import plural, with_app
from celery_delayq.cli.command import command, json_option
from celery_delayq.cli.output import add_columns, console, new_table, print_json, text
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import SPAN
from celery_delayq.health.whole import check_all, check_overdue

_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "bold red"}


@command("check")
@click.option("--strict", is_flag=True, help="Exit with 1 even if there are only warnings.")
@click.option(
    "--max-overdue",
    type=SPAN,
    metavar="SPAN",
    help="Check only this: exit with 1 if a message has been overdue for longer, for example 60 or 5m.",
)
@json_option
def check(ctx: click.Context, strict: bool, max_overdue: timedelta | None, as_json: bool) -> None:
    """Check servers, permissions, clocks, settings, and which processes run.

    Each line is ok, a note, a warning or an error, with what to do. The exit code is 1 if there is an error. Nothing is
    changed.
    """
    if max_overdue is not None and max_overdue < timedelta(0):
        raise click.BadParameter("must not be negative", ctx, param_hint="--max-overdue")
    app = ctx.obj.app
    found = check_all(app) if max_overdue is None else check_overdue(app, most_s=max_overdue.total_seconds())
    findings = [replace(finding, advice=with_app(finding.advice)) for finding in found]
    if as_json:
        for finding in findings:
            fields = vars(finding)
            print_json({name: value for name, value in fields.items() if name != "was_checked"})
    else:
        _print(findings)
    bad = {Level.ERROR, Level.WARNING} if strict else {Level.ERROR}
    if any(finding.level in bad for finding in findings):
        ctx.exit(1)


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
