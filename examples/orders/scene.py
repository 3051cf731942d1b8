"""The shop on a busy day, for the web page: two queues, periodic tasks, and what has happened in the last hours.

celery -A examples.orders.scene worker -Q example-orders,mail

Whoever looks at the page finds something on each of its pages: `fill` makes up what a shop would have by itself after
some hours.
"""

from __future__ import annotations

import base64
import json
import math
import random
import time

from celery_delayq.queue import dead_letter, measuring
from celery_delayq.queue.keys import QueueKeys
from examples.orders.shop import app, database, delayq, place_order

MAIL = "mail"
QUEUES = (app.conf.task_default_queue, MAIL)

#: How long a customer has to pay, in seconds, and how many orders and reminders there are at first.
PAY_WITHIN_S, ORDERS, REMINDERS = 30 * 60, 300, 420

_HOUR_S, _DAY_S = 3600, 86400


class CardRefusedError(Exception):
    """The bank refuses a card."""


@app.task(name="shop.remind", ignore_result=True)
def remind(order_id: str, by: str = "mail") -> None:
    """Remind a customer of an order."""


@app.task(name="shop.charge", ignore_result=True, keep_failed=True)
def charge(order_id: str, cents: int) -> None:
    """Charge the card of a customer whose bank refuses that: a failed task, which is kept."""
    raise CardRefusedError(f"card of {order_id} refused: {cents / 100:.2f} EUR are more than its limit")


@app.task(name="shop.sync_stock", ignore_result=True, acks_late=True)
def sync_stock(warehouse: str) -> None:
    """Ask a warehouse what it has, which takes a while."""
    time.sleep(4)


@app.task(name="shop.report", ignore_result=True)
def report(kind: str, recipients: list[str]) -> None:
    """Write a report."""


def fill() -> None:
    """Make up what waits, what was set aside, what failed, and what happened in the last eight hours."""
    chance = random.Random(3)
    for number in range(1001, 1001 + ORDERS):
        place_order(f"order-{number}", pay_within_s=chance.uniform(20, PAY_WITHIN_S))
    for number in range(1001 - REMINDERS, 1001):
        _remind(f"order-{number}", countdown=chance.expovariate(1 / (2 * _HOUR_S)) + 20)
    for days in range(1, 21):
        _remind(f"order-{400 + days}", by="letter", countdown=days * _DAY_S)
    for order_id, cents in (("order-977", 129_900), ("order-985", 84_950)):
        charge.delay(order_id, cents)
    schedule, owner = delayq.schedule, {"recipients": ["owner@shop.example"]}
    schedule.add("daily-report", report.name, "30 6 * * mon-fri", ["day"], owner, tz="Europe/Berlin")
    schedule.add("monthly-report", report.name, "0 7 1 * *", ["month"], owner, tz="Europe/Berlin")
    schedule.add("stock-north", sync_stock.name, 20, ["north"])
    schedule.add("stock-south", sync_stock.name, 30, ["south"], jitter=5)
    schedule.add("spring-sale", remind.name, 3600, ["everybody"], options={"queue": MAIL})
    schedule.pause("spring-sale")
    _bury()
    _remember(chance)


def _remind(order_id: str, *, by: str = "mail", countdown: float) -> None:
    remind.apply_async((order_id,), {"by": by}, countdown=countdown, queue=MAIL, task_id=f"remind:{order_id}")


def wait_for_worker() -> None:
    """Wait until a worker has delivered of both queues, has planned the periodic tasks, and cards were refused."""

    def is_settled() -> bool:
        counts = delayq.counts().queues
        planned = all(entry.next_run or entry.paused for entry in delayq.schedule)
        return planned and all(one.punctual for one in counts) and any(one.failed for one in counts)

    deadline = time.monotonic() + 60
    while not is_settled():
        if time.monotonic() > deadline:
            raise TimeoutError("no worker, or it did not do all of that in a minute")
        time.sleep(0.2)


def _bury() -> None:
    """Set reminders aside: their workers died five times."""
    keys, now_s = QueueKeys.of(MAIL), int(time.time())
    for number in range(3):
        died_s = now_s - 600 * (3 - number)
        letter_id, order_id = f"{died_s:08x}00000000", f"order-{571 + number}"
        sent = app.amqp.as_task_v2(f"remind:{order_id}", remind.name, (order_id,), {"by": "mail"})
        info = {"exchange": "", "routing_key": MAIL}
        raw = {
            "body": base64.b64encode(json.dumps(sent.body).encode()).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": sent.headers,
            "properties": {
                **sent.properties,
                "body_encoding": "base64",
                "delivery_info": info,
                "delivery_tag": letter_id,
            },
        }
        message = json.dumps(raw).encode()
        record = dead_letter.pack(message, reason=dead_letter.DELIVERY_LIMIT, deliveries=5)
        database.zadd(keys.dead, {letter_id: died_s * 1000})
        database.hset(keys.records, letter_id, record)


def _remember(chance: random.Random) -> None:
    """Count what workers delivered in the last eight hours, and how late."""
    now_s = int(time.time())
    for queue, usual in zip(QUEUES, (60, 25), strict=True):
        for ago_s in range(0, 8 * _HOUR_S, 60):
            delivered = round(usual * (1 + 0.6 * math.sin(ago_s / 5000)) + chance.uniform(-6, 6))
            late = round(delivered * (0.03 + 0.06 * chance.random()))
            numbers = {
                "transferred": delivered,
                "transfer_lateness:0.0025": delivered - late,
                "transfer_lateness:0.005": late,
            }
            measuring.count(QueueKeys.of(queue), now_s=now_s - ago_s, numbers=numbers).run(database)
