"""`celery -A app delayq top`: a live view of waiting tasks."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from celery_delayq.cli.broker import check_complete, inspecting, queue_option
from celery_delayq.cli.command import command, usage_errors
from celery_delayq.cli.listing import task_table
from celery_delayq.cli.output import console
from celery_delayq.cli.plain import visible
from celery_delayq.cli.status import histogram, queue_table, span_option
from celery_delayq.inspector import Inspector, pages
from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.counts import count
from celery_delayq.inspector.pages import Criteria

#: Draws one screen; also returns what is not on it because nodes of a cluster are away.
Frame = Callable[[Inspector], tuple[RenderableType, Lost]]


@command("top")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between refreshes."
)
@click.option(
    "--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Show this many of the next tasks."
)
@queue_option("Show the next tasks of this queue only.")
@span_option
@click.option("--once", is_flag=True, help="Show it once and exit.")
def top(ctx: click.Context, interval: float, limit: int, queue: str | None, span: timedelta, once: bool) -> None:
    """Show counts and the next due tasks, and keep refreshing. Press Ctrl-C to quit."""
    out = console()

    def frame(inspector: Inspector) -> tuple[RenderableType, Lost]:
        with usage_errors():
            counts = count(inspector.lists, span=span.total_seconds(), buckets=12, partial=True)
        page = pages.page(inspector.lists, Criteria.of(queue=queue), limit=limit, partial=True)
        lost = counts.lost | page.lost
        trouble = [Text(f"{visible(lost)}\n", "red")] if lost else []
        tasks = task_table(page, out.width, title="next")
        return Group(*trouble, queue_table(counts, out.width), "", tasks, "", histogram(counts)), lost

    if not (once or out.is_terminal):
        raise click.UsageError("top needs a terminal: add --once, or use `status`")
    with inspecting(ctx.obj.app) as inspector:
        inspector.check_queue(queue)
        first, lost = frame(inspector)
    if once:
        out.print(first)
        check_complete(lost)
    else:
        _live(ctx.obj.app, out, first, frame, interval)


def _live(app: Any, out: Console, first: RenderableType, frame: Frame, interval: float) -> None:
    """Draw until SIGINT or SIGTERM. While the server is away, show the error and retry."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Live(first, console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                try:
                    with inspecting(app) as inspector:
                        while True:
                            live.update(frame(inspector)[0], refresh=True)
                            time.sleep(interval)
                except click.ClickException as exc:
                    trouble = Text(f"{visible(exc.message)}\nRetrying every {interval:g} s.", "red")
                    live.update(trouble, refresh=True)
    except KeyboardInterrupt:
        pass
