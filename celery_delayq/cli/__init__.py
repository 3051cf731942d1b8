"""`celery -A app delayq ...`: the command line, a skin over the inspector.

command    what all commands have in common; exit codes
broker     the app's broker, its inspector and its queues
output     tables, JSON, progress
times      times as people write them
status, listing, changes, backup, dead, top, transfer      the commands
"""

from __future__ import annotations

import click

from celery_delayq.cli.backup import export, import_, release
from celery_delayq.cli.changes import cancel, reschedule, run_now
from celery_delayq.cli.dead import dead
from celery_delayq.cli.listing import list_, show
from celery_delayq.cli.orphans import orphans
from celery_delayq.cli.schedule import schedule
from celery_delayq.cli.status import status
from celery_delayq.cli.top import top
from celery_delayq.cli.transfer import transfer


@click.group(name="delayq")
def delayq() -> None:
    """Delayed tasks that wait in Redis."""


_COMMANDS = (
    *(status, list_, show, cancel, reschedule, run_now),
    *(dead, export, import_, release, top, transfer, schedule, orphans),
)
for _command in _COMMANDS:
    delayq.add_command(_command)
