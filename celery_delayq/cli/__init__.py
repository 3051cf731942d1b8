"""`celery -A app delayq ...`: the command line, a skin over the inspector.

group      the group of all commands: finds them, and what their errors say
command    what all commands have in common; exit codes
broker     the app's broker, its inspector and its queues
plain      lines without control characters
output     tables, JSON, progress
times      times as people write them
status, listing, changes, backup, dead, top, transfer      the commands
"""

from __future__ import annotations

import click

from celery_delayq.cli.group import Commands

#: Where each command is.
_COMMANDS = {
    "cancel": "changes:cancel",
    "dead": "dead:dead",
    "export": "backup:export",
    "import": "backup:import_",
    "list": "listing:list_",
    "orphans": "orphans:orphans",
    "release": "backup:release",
    "reschedule": "changes:reschedule",
    "run-now": "changes:run_now",
    "schedule": "schedule:schedule",
    "show": "listing:show",
    "status": "status:status",
    "top": "top:top",
    "transfer": "transfer:transfer",
}


@click.group("delayq", cls=Commands, places={name: f"{__name__}.{place}" for name, place in _COMMANDS.items()})
def delayq() -> None:
    """Delayed tasks that wait in Redis."""
