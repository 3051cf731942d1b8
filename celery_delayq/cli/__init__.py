"""`celery -A app delayq ...`: the command line."""

from __future__ import annotations

import click

from celery_delayq.cli.dead import dead
from celery_delayq.cli.orphans import orphans
from celery_delayq.cli.schedule import schedule
from celery_delayq.cli.transfer import transfer


@click.group(name="delayq")
def delayq() -> None:
    """Delayed tasks that wait in Redis."""


delayq.add_command(transfer)
delayq.add_command(dead)
delayq.add_command(orphans)
delayq.add_command(schedule)
