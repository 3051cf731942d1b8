"""`celery -A app delayq transfer`: the transfer loop without a worker."""

from __future__ import annotations

import logging
import select
import signal
from collections.abc import Callable
from threading import Lock

import click
import redis

from celery_delayq.basics.descriptors import Waker
from celery_delayq.basics.text import plural
from celery_delayq.cli.broker import delayq_channel
from celery_delayq.cli.command import command
from celery_delayq.cli.plain import say, visible
from celery_delayq.health.at_start import say_at_start
from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.options.settings import AppSettings, settings_of
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.scripts import Transferred
from celery_delayq.transport import Transport
from celery_delayq.transport.program import Program

#: The package's logger; `--loglevel` sets its level.
logger = logging.getLogger("celery_delayq")

#: How often to look whether the nodes of a cluster have changed, in seconds.
_LOOK_S = 0.25


class VisibleFormatter(logging.Formatter):
    """Escapes control characters in log lines, because they may contain names from Redis."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text, see `logging`."""
        return visible(super().format(record), keep="\n")


class Counted(Program):
    """Counts what the loops transfer.

    Args:
        recorder: where.
        flusher: adds that to Redis; None for nobody.
    """

    def __init__(self, recorder: Recorder, flusher: Flusher | None) -> None:
        self.moved = 0
        self._lock = Lock()
        self._recorder = recorder
        self._flusher = flusher

    def on_pass(self, queue: DelayedQueue, done: Transferred) -> None:
        """Count what was transferred."""
        with self._lock:  # the loops have threads of their own
            self.moved += done.moved
        self._recorder.on_pass(queue, done)

    def chores(self, client: redis.Redis, serves: Callable[[str], bool]) -> None:
        """Add to Redis what was counted."""
        if self._flusher is not None:
            self._flusher.flush(client, serves)


@command("transfer")
@click.option(
    "-Q",
    "--queues",
    default="",
    metavar="LIST[,LIST]...",
    help="Also serve these broker lists, for example lists that only Java offers to and that no worker transfers.",
)
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Log level. DEBUG shows each transfer.",
)
def transfer(ctx: click.Context, queues: str, loglevel: str) -> None:
    """Move due tasks to their queues, without a worker.

    Each worker does this already. Run this command if due tasks should reach their queues while no worker is up, for
    example so that an autoscaler counts them. You can run any number of them. SIGINT or SIGTERM stops it.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("[%(asctime)s: %(levelname)s] %(message)s"))
    logging.basicConfig(handlers=[handler])
    logger.setLevel(loglevel.upper())
    app = ctx.obj.app
    settings = settings_of(app)
    with delayq_channel(app) as channel:
        say_at_start(logger, app, channel)
        lists = {name for queue in app.amqp.queues for name in channel.broker_lists(queue)}
        lists.update(name for name in map(str.strip, queues.split(",")) if name)
        recorder = Recorder()
        flusher = Flusher(recorder, channel.global_keyprefix, channel.first_list) if settings.metrics else None
        transport = channel.connection
        transport.program = program = Counted(recorder, flusher)
        transport.loops.more_lists = frozenset(lists)
        transport.loops.has_failover = True
        stop = Waker()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.wake())
        say(f"Transferring delayed tasks of {transport.client.as_uri()} (Press Ctrl-C to stop)", err=True)
        _transfer_until(stop, transport, settings)
    say(f"{plural(program.moved)} transferred.", err=True)


def _transfer_until(stop: Waker, transport: Transport, settings: AppSettings) -> None:
    """Transfer until `stop` wakes; on a cluster, follow its nodes, as a worker does when it fetches."""
    nodes = transport.nodes
    version = 0 if nodes is None else nodes.topology.version
    transport.loops.start(settings.transfer)
    if nodes is not None:
        nodes.watch()
    while not select.select([stop], [], [], None if nodes is None else _LOOK_S)[0]:
        if nodes is not None and version != nodes.topology.version:
            version = nodes.topology.version
            transport.loops.follow_nodes()
    transport.loops.stop()
