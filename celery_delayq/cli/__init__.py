"""`celery -A app delayq ...`: the command line, a thin layer over the inspector.

group      the command group: imports commands on demand, makes control characters in errors visible
command    options and helpers that all commands share; exit codes
broker     the app's broker, its inspector and its queues
plain      lines without control characters
output     tables, JSON, progress
times      parsing and formatting of times
status, listing, changes, pause, backup, dead, top, transfer, check, metrics, web, workers      the commands
"""

from __future__ import annotations

import click

from celery_delayq.cli.group import Commands

#: Command name -> module and attribute.
_COMMANDS = {
    "cancel": "changes:cancel",
    "check": "check:check",
    "dead": "dead:dead",
    "export": "backup:export",
    "import": "backup:import_",
    "list": "listing:list_",
    "metrics": "metrics:metrics",
    "orphans": "orphans:orphans",
    "pause": "pause:pause",
    "release": "backup:release",
    "reschedule": "changes:reschedule",
    "resume": "pause:resume",
    "run-now": "changes:run_now",
    "schedule": "schedule:schedule",
    "show": "listing:show",
    "status": "status:status",
    "top": "top:top",
    "transfer": "transfer:transfer",
    "update": "changes:update",
    "web": "web:web",
    "workers": "workers:workers",
}

#: Commands that run until they are stopped.
_ENDLESS = ("metrics", "top", "transfer", "web")


@click.group("delayq", cls=Commands, places={name: f"{__name__}.{place}" for name, place in _COMMANDS.items()})
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Fail if a command takes longer than this, even if Redis hangs. Not for commands that run until stopped.",
)
@click.pass_context
def delayq(ctx: click.Context, timeout: float | None) -> None:
    """Inspect and change delayed tasks in Redis."""
    if timeout is None:
        return
    if ctx.invoked_subcommand in _ENDLESS:
        raise click.UsageError(f"--timeout does not apply to {ctx.invoked_subcommand}, which runs until you stop it")
    from celery_delayq.basics.deadline import within
    from celery_delayq.cli.command import usage_errors

    with usage_errors():
        ctx.with_resource(within(timeout))
