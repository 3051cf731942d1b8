"""`celery -A app delayq transfer`: the transfer loop without a worker."""

from __future__ import annotations

import logging
import signal

import click

from celery_delayq.cli.broker import delayq_channel
from celery_delayq.cli.command import command
from celery_delayq.cli.plain import say, visible
from celery_delayq.config import settings_of
from celery_delayq.delayed_queue import DelayedQueue
from celery_delayq.errors import DelayqError
from celery_delayq.scripts import Transferred
from celery_delayq.server import check_server
from celery_delayq.transfer import TransferLoop
from celery_delayq.transport import Connector

#: The package's logger, whose level the option sets.
logger = logging.getLogger("celery_delayq")


class VisibleFormatter(logging.Formatter):
    """Makes what is logged visible: it may have names from Redis."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text, see `logging`."""
        return visible(super().format(record), keep="\n")


@command("transfer")
@click.option(
    "-Q",
    "--queues",
    default="",
    metavar="LIST[,LIST]...",
    help="Serve these broker lists, too, whoever offers to them: where only Java does, and nobody else transfers.",
)
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="What to log; DEBUG shows every transfer.",
)
def transfer(ctx: click.Context, queues: str, loglevel: str) -> None:
    """Move due tasks to their queues, without a worker.

    Every worker does this already. Run it where due tasks shall reach their queues although no worker is up, so that
    an autoscaler counts them. It ends on SIGINT or SIGTERM, and may run any number of times.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("[%(asctime)s: %(levelname)s] %(message)s"))
    logging.basicConfig(handlers=[handler])
    logger.setLevel(loglevel.upper())
    app = ctx.obj.app
    moved = 0

    def count(queue: DelayedQueue, done: Transferred) -> None:
        nonlocal moved
        moved += done.moved

    try:
        settings = settings_of(app).transfer
    except DelayqError as exc:
        raise click.ClickException(str(exc)) from exc
    with delayq_channel(app) as (connection, channel):
        for finding in check_server(channel.plain_client):
            logger.log(finding.level, finding.message)
        lists = {name for queue in app.amqp.queues for name in channel.broker_lists(queue)}
        lists.update(name for name in map(str.strip, queues.split(",")) if name)
        connector = Connector(connection, failover=True)
        keyprefix = channel.global_keyprefix

    loop = TransferLoop(connector, lambda: lists, keyprefix=keyprefix, settings=settings, on_pass=count)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.stop())
    say(f"Transferring the delayed tasks of {connection.as_uri()}, Ctrl-C ends it.", err=True)
    loop.run()
    say(f"{moved} tasks transferred.", err=True)
