"""`celery -A app delayq workers`: which workers consume which queues, and what they hold."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click
from rich.table import Table

from celery_delayq.cli.broker import check_complete, inspecting
from celery_delayq.cli.command import command, json_option
from celery_delayq.cli.output import NARROW, add_columns, new_table, print_rows, text
from celery_delayq.cli.plain import say
from celery_delayq.cli.times import shown, shown_span
from celery_delayq.inspector.consumers import Consumer, Consumers, consumers

_NOBODY = (
    "No worker with a delayq:// URL and DelayQ(app) is running. Stock workers (redis://) have no leases, and are not "
    "shown."
)


@command("workers")
@json_option
def workers(ctx: click.Context, as_json: bool) -> None:
    """Show the consumers of all queues.

    For each connection of a worker, show its queues, how many messages it holds, how long its leases last, and of
    which queues its process is the punctual worker: the one that moves due tasks to the queue.

    On a Redis Cluster, if a node does not answer, show what concerns all other queues, and exit with 1.
    """
    with inspecting(ctx.obj.app) as inspector:
        found = consumers(inspector.lists, partial=True)
    if found.consumers:
        print_rows(map(_as_json, found.consumers), as_json, partial(_table, found))
    elif not found.lost:
        say(_NOBODY, err=True)
    check_complete(found.lost)


def _table(found: Consumers, width: int) -> Table:
    table = new_table(f"{shown(found.at)} UTC", dense=width < NARROW)
    add_columns(table, "worker", "queues")
    add_columns(table, "in-flight", right=True, firm=True)
    add_columns(table, "lease", firm=True)
    add_columns(table, "punctual worker of")
    for consumer in found.consumers:
        process = consumer.node if consumer.pid is None else f"{consumer.node}:{consumer.pid}"
        punctual = sorted({lease.queue for lease in consumer.leases if lease.is_punctual})
        table.add_row(
            text(process),
            text(", ".join(consumer.queues)),
            f"{consumer.in_flight:,}",
            "; ".join(_states(consumer, found.at)),
            text(", ".join(punctual) or None),
        )
    return table


def _states(consumer: Consumer, at: datetime) -> list[str]:
    """Return what is to be said of its leases, which it renews and loses together as a rule."""
    ends: dict[str, datetime] = {}
    for lease in consumer.leases:
        state = "given up" if lease.is_given_up else "lasts" if lease.is_lasting else "ended"
        ends[state] = min(lease.ends, ends.get(state, lease.ends))
    return [
        f"{state} {shown_span(max(timedelta(0), end - at))}"
        if state == "lasts"
        else f"{state} {shown_span(at - end)} ago"
        for state, end in sorted(ends.items())
    ]


def _as_json(consumer: Consumer) -> dict[str, Any]:
    return {
        "id": consumer.id,
        "node": consumer.node,
        "host": consumer.host,
        "pid": consumer.pid,
        "queues": list(consumer.queues),
        "in_flight": consumer.in_flight,
        "leases": [
            {
                "queue": lease.queue,
                "priority": lease.priority,
                "broker_list": lease.broker_list,
                "ends": lease.ends.isoformat(),
                "lasting": lease.is_lasting,
                "given_up": lease.is_given_up,
                "in_flight": lease.in_flight,
                "punctual": lease.is_punctual,
            }
            for lease in consumer.leases
        ],
    }
