"""Fill a broker with what a shop has on an ordinary day, a little of everything that the operators' page shows."""

from __future__ import annotations

import base64
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery import Celery, chain, chord
from kombu import pools

from celery_delayq import DelayedQueue
from celery_delayq.queue import dead_letter
from celery_delayq.queue.connections import as_text
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.set_aside import keep
from celery_delayq.transport.redelivery import DELIVERY_COUNT
from tests import brokers, state
from tests.brokers import Server
from tests.web.shop import make_app

#: Who holds what is in flight: a consumer whose lease lasts an hour, without a process.
CONSUMER = "worker@shop.example:4711:1"

_TRACEBACK = """Traceback (most recent call last):
  File "shop/payments.py", line 12, in charge
    bank.charge(order, amount)
TimeoutError: the bank does not answer
"""


@dataclass
class Filled:
    """What `fill` put into the broker.

    Attributes:
        waiting: ids of the tasks that wait, by what they are for. Only the first task of a chain waits.
        overdue: id of a task that was due a minute before, and waits all the same. A worker would move it at once.
        ready: id of a task that is in its queue.
        in_flight: id of a task that `CONSUMER` holds.
        dead: ids of the dead letters of queue `celery`, by their reasons.
        periodic: names of the periodic tasks that were added.
    """

    waiting: dict[str, str] = field(default_factory=dict)
    overdue: str = ""
    ready: str = ""
    in_flight: str = ""
    dead: dict[str, str] = field(default_factory=dict)
    periodic: list[str] = field(default_factory=list)


@contextmanager
def shop(server: Server, ledger: str, **conf: Any) -> Iterator[Celery]:
    """The shop's app for this process, on an empty broker."""
    with server.client() as client:
        client.flushall()
    app = make_app(brokers.url_of(server), ledger, **conf)
    try:
        yield app
    finally:
        gc.collect()  # results unsubscribe when they are collected, for which their server must still be there
        app.close()
        pools.reset()  # pooled connections know of queues that are deleted when the broker is filled again


def fill(app: Celery, client: redis.Redis) -> Filled:
    """Put a little of everything into an empty broker.

    Args:
        app: the shop.
        client: a client of the broker.
    """
    filled = Filled()
    _tasks(app, filled)
    _overdue_and_fetched(app, client, filled)
    _dead(app, client, filled)
    _periodic(app, filled)
    return filled


def add_orders(app: Celery, count: int, *, first_due_s: float = 60, apart_s: float = 30) -> list[str]:
    """Add reminders of orders, each due a while after the one before; return their ids. For lists of many pages."""
    remind = app.tasks["shop.orders.remind"]
    spans = (first_due_s + number * apart_s for number in range(count))
    signatures = [remind.s(5000 + number).set(countdown=span) for number, span in enumerate(spans)]
    return [result.id for result in app.delayq.apply_async_many(signatures)]


def _tasks(app: Celery, filled: Filled) -> None:
    now = datetime.now(timezone.utc)
    tasks = app.tasks

    def add(what: str, name: str, *args: Any, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        filled.waiting[what] = tasks[name].apply_async(args, kwargs, **options).id

    add("soon", "shop.orders.remind", 1001, countdown=90)
    add("in an hour", "shop.orders.remind", 1002, kwargs={"channel": "sms"}, countdown=3600)
    add("tomorrow", "shop.orders.ship", 1003, eta=now + timedelta(days=1))
    add("next year", "shop.orders.ship", 1004, eta=now + timedelta(days=400))
    add("expires", "shop.orders.remind", 1005, countdown=1800, expires=7200)
    add("a retry", "shop.payments.charge", 1006, 4999, countdown=600, retries=2)
    for priority in (3, 6, 9):
        add(f"priority {priority}", "shop.orders.ship", 1010 + priority, countdown=1200, priority=priority)
    for number, hours in enumerate((1, 2, 5, 30)):
        mail = {"to": f"customer{number}@shop.example", "subject": "Did you forget something?", "cart": [1, 2, number]}
        add(f"mail {number}", "shop.mail.send", kwargs=mail, countdown=hours * 3600, queue="mail", priority=3)
    add("a report", "shop.reports.daily", ["owner@shop.example"], countdown=7200, queue="reports")
    ship, invoice, send = tasks["shop.orders.ship"], tasks["shop.orders.invoice"], tasks["shop.mail.send"]
    result = chain(ship.s(1020), send.si("a@shop.example", "On its way")).apply_async(countdown=2400)
    filled.waiting["a chain"] = result.parent.id
    whole = chord([ship.s(1030 + number).set(countdown=2700) for number in range(3)], invoice.s()).apply_async()
    filled.waiting.update({f"chord {number}": part.id for number, part in enumerate(whole.parent)})
    filled.ready = tasks["shop.mail.send"].apply_async(("b@shop.example", "Thank you"), queue="mail").id


def message_of(app: Celery, client: redis.Redis, name: str, *args: Any, **headers: Any) -> tuple[str, bytes]:
    """Return id and message of a task as Celery sends it, which is nowhere now.

    Args:
        app: the shop.
        client: a client of the broker.
        name: name of a task of the shop.
        args: its arguments.
        headers: further headers, or others.
    """
    queue = DelayedQueue(client, "celery")
    task_id = app.tasks[name].apply_async(args, countdown=3600).id
    (entry,) = queue.find(task_id)
    assert queue.cancel(task_id)
    message = json.loads(entry.payload)
    message["headers"].update(headers)
    return task_id, json.dumps(message).encode()


def _overdue_and_fetched(app: Celery, client: redis.Redis, filled: Filled) -> None:
    queue = DelayedQueue(client, "celery")
    filled.overdue, message = message_of(app, client, "shop.orders.remind", 1007)
    state.offer(queue, filled.overdue, state.now_ms(client) - 60_000, message)
    filled.in_flight, message = message_of(app, client, "shop.stock.count", 60.0, eta=None)
    state.lease(queue, CONSUMER)
    state.give(queue, CONSUMER, message)


def _dead(app: Celery, client: redis.Redis, filled: Filled) -> None:
    at_ms = state.now_ms(client) - 3_600_000
    _, killer = message_of(app, client, "shop.payments.charge", 1008, 100, eta=None, **{DELIVERY_COUNT: 5})
    _, invalid = message_of(app, client, "shop.orders.ship", 1009, eta="the day after", timelimit=[None, None])
    records = [
        dead_letter.pack(killer, reason=dead_letter.DELIVERY_LIMIT, deliveries=6),
        dead_letter.pack(b"not kombu's JSON", reason=dead_letter.NOT_A_MESSAGE, deliveries=1),
        dead_letter.pack(invalid, reason=dead_letter.INVALID_TASK, error="its eta is no ISO 8601 time"),
        b"\x00\x01 an entry that is cut off",
    ]
    for letter_id, record in zip(state.bury(client, "celery", *records, at_ms=at_ms), records, strict=True):
        filled.dead[dead_letter.reason_of(record)] = letter_id
    _, unpaid = message_of(app, client, "shop.payments.charge", 1010, 100, eta=None)
    known: dict[str, Any] = {"error": "TimeoutError: the bank does not answer", "worker": "celery@shop-1", "runs": 4}
    record = dead_letter.pack(unpaid, reason=dead_letter.FAILED, traceback=_TRACEBACK, **known)
    keys = QueueKeys.of("celery")
    keep(keys, record=record, most=100, kept_ms=86_400_000).run(client)
    (filled.dead[dead_letter.FAILED],) = map(as_text, client.zrange(keys.failed, 0, -1))


def _periodic(app: Celery, filled: Filled) -> None:
    schedule = app.delayq.schedule
    schedule.add("restock", "shop.stock.count", 900.0, [0.0], options={"priority": 3})
    weekdays = {"tz": "Europe/Berlin", "jitter": 30.0, "missed": "once"}
    schedule.add("newsletter", "shop.mail.send", "0 6 * * mon-fri", ["all@shop.example", "News"], **weekdays)
    schedule.add("sale ends", "shop.carts.tidy", "0 0 * * *", max_runs=1, options={"queue": "reports"})
    schedule.add("old campaign", "shop.carts.tidy", 60.0, end=datetime.now(timezone.utc) - timedelta(days=1))
    schedule.add("paused one", "shop.reports.daily", "30 4 1 * *", [["owner@shop.example"]])
    schedule.pause("paused one")
    filled.periodic = ["newsletter", "old campaign", "paused one", "restock", "sale ends"]


def body_of(args: list[Any], kwargs: dict[str, Any] | None = None) -> str:
    """Return a body as Celery's producers send it."""
    return base64.b64encode(json.dumps([args, kwargs or {}, {}]).encode()).decode()
