"""`celery -A app delayq status`: how much waits where, and when it is due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from celery_delayq.cli.broker import check_complete, inspecting
from celery_delayq.cli.command import Decorator, command, json_option, usage_errors
from celery_delayq.cli.output import NARROW, WIDTH, add_columns, console, new_table, print_json, text
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import SPAN, shown, shown_span
from celery_delayq.inspector.away import LostQueue
from celery_delayq.inspector.counts import Counts, QueueCounts, count

#: Number columns: attributes of `QueueCounts`.
_NUMBERS = ("ready", "delayed", "overdue", "in_flight", "dead", "failed")

_NOTHING_YET = (
    "Nothing here yet: no task is delayed, ready or in flight, and there are no dead letters. Delay a task with "
    "`apply_async(countdown=60)`. What workers of stock Celery hold is not counted."
)

#: The colors of numbers that are not zero, in a terminal.
_COLORS = {"overdue": "yellow", "dead": "red", "failed": "red"}

#: Width of the longest bar.
_BAR = 50

#: For commands that show a histogram.
span_option: Decorator = click.option(
    "--span", type=SPAN, default="1h", show_default=True, help="How far ahead the histogram reaches: 1h, 1d, 7d."
)


@command("status")
@span_option
@click.option(
    "--buckets", type=click.IntRange(1, 1000), default=12, show_default=True, help="Number of bars in the histogram."
)
@json_option
def status(ctx: click.Context, span: timedelta, buckets: int, as_json: bool) -> None:
    """Show message counts and due times.

    For each queue, show the counts, the next due time and the punctual worker, which moves due tasks to the queue.
    Below, show a histogram of due times.

    On a Redis Cluster, also show the node of each queue. If a node does not answer, show all others, and exit with 1.
    """
    with inspecting(ctx.obj.app) as inspector, usage_errors():
        counts = count(inspector.lists, span=span.total_seconds(), buckets=buckets, partial=True)
    if as_json:
        print_json(_as_json(counts))
    else:
        out = console()
        if _is_empty(counts):
            say(_NOTHING_YET)
        else:
            out.print(queue_table(counts, out.width))
            out.print()
            out.print(histogram(counts) if any(queue.delayed for queue in counts.queues) else "No task is delayed.")
    check_complete(counts.lost)


def queue_table(counts: Counts, width: int) -> Table:
    """Return a table of the queues, with totals, for a console that is `width` columns wide.

    On a cluster, it has room for both nodes and punctual workers only from 120 columns on.
    """
    narrow = width < NARROW
    clustered = _is_cluster(counts)
    with_workers = width >= WIDTH or not clustered
    numbers = _NUMBERS if any(queue.failed for queue in counts.queues) else _NUMBERS[:-1]
    table = new_table(f"{shown(counts.at)} UTC", dense=narrow)
    add_columns(table, "queue", *(["node"] if clustered else []))
    add_columns(table, *(name.replace("_", "-") for name in numbers), right=True, firm=True)
    add_columns(table, "next due (UTC)", firm=True)
    add_columns(table, "left", right=True, firm=True)
    if with_workers:
        add_columns(table, "punctual worker")
    for queue in _sorted(counts):
        if isinstance(queue, LostQueue):
            dashes = ["-"] * (len(numbers) + 2 + with_workers)
            table.add_row(text(queue.queue), text(f"{queue.node or '-'} {queue.error}"), *dashes)
            continue
        left = None if queue.next_due is None else shown_span(queue.next_due - counts.at)
        table.add_row(
            text(f"{queue.queue} (paused)" if queue.is_paused else queue.queue),
            *([text(queue.node)] if clustered else []),
            *(_number(name, getattr(queue, name)) for name in numbers),
            shown(queue.next_due, short=narrow),
            text(left),
            *([text(", ".join(sorted({_process(loop) for loop in queue.punctual})) or None)] if with_workers else []),
        )
    if len(counts.queues) > 1:
        table.add_section()
        table.add_row(
            "all others" if counts.lost.queues else "all",
            *([""] if clustered else []),
            *(_number(name, number) for name, number in _totals(counts).items() if name in numbers),
            shown(counts.next_due, short=narrow),
        )
    return table


def _is_empty(counts: Counts) -> bool:
    """Return whether there is nothing yet: no message, and no worker that has moved any."""
    return not (
        counts.lost
        or any(_totals(counts).values())
        or any(queue.is_paused or queue.punctual for queue in counts.queues)
    )


def _number(name: str, number: int) -> Text:
    return Text(f"{number:,}", style=_COLORS.get(name, "") if number else "dim")


def _is_cluster(counts: Counts) -> bool:
    return bool(counts.lost) or any(queue.node for queue in counts.queues)


def _sorted(counts: Counts) -> list[QueueCounts | LostQueue]:
    return sorted((*counts.queues, *counts.lost.queues), key=lambda queue: queue.queue)


def histogram(counts: Counts) -> Table:
    """Return a table with a bar for each bucket, and the number of messages that are due later."""
    first, last = counts.histogram[0], counts.histogram[-1]
    span = timedelta(seconds=round((last.end - first.start).total_seconds()))
    table = new_table(f"due within {shown_span(span)}")
    add_columns(table, "from (UTC)", firm=True)
    add_columns(table, "tasks", right=True, firm=True)
    table.add_column(width=_BAR)
    most = max(bucket.count for bucket in counts.histogram)
    for bucket in counts.histogram:
        bar = Bar(most, 0, bucket.count, width=_BAR, color="cyan") if bucket.count else ""
        table.add_row(shown(bucket.start), f"{bucket.count:,}", bar)
    table.add_row("later", f"{counts.later:,}")
    return table


def _process(loop: str) -> str:
    """Return the host and process id of a loop, without its number."""
    return loop.rpartition(":")[0] or loop


def _totals(counts: Counts) -> dict[str, int]:
    return {name: sum(getattr(queue, name) for queue in counts.queues) for name in _NUMBERS}


def _as_json(counts: Counts) -> dict[str, Any]:
    def row(queue: QueueCounts | LostQueue) -> dict[str, Any]:
        if isinstance(queue, LostQueue):
            fields: dict[str, Any] = {
                "queue": queue.queue,
                **dict.fromkeys(_NUMBERS),
                "next_due": None,
                "punctual": [],
                "paused": None,
            }
            return {**fields, "node": queue.node, "error": queue.error}
        fields = {
            "queue": queue.queue,
            **{name: getattr(queue, name) for name in _NUMBERS},
            "next_due": queue.next_due and queue.next_due.isoformat(),
            "punctual": queue.punctual,
            "paused": queue.is_paused,
        }
        return {**fields, "node": queue.node, "error": None} if clustered else fields

    clustered = _is_cluster(counts)
    return {
        "at": counts.at.isoformat(),
        "queues": [row(queue) for queue in _sorted(counts)],
        "totals": _totals(counts),
        "next_due": counts.next_due and counts.next_due.isoformat(),
        "histogram": [
            {"start": bucket.start.isoformat(), "end": bucket.end.isoformat(), "count": bucket.count}
            for bucket in counts.histogram
        ],
        "later": counts.later,
        **({"error": str(counts.lost) or None} if clustered else {}),
    }
