"""The story: customers order, some of them pay in time, and the ledger says what became of each order.

python -m examples.orders.story

It needs the Redis of `SHOP_REDIS` and a worker, see README.md; `examples.orders.demo` brings both.
"""

from __future__ import annotations

import argparse
import heapq
import signal
import sys
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

# Not when the first task is sent: up to Python 3.11, a Ctrl-C in the middle of a class body becomes another error.
import celery.app.events  # noqa: F401
import kombu.exceptions
import redis

from celery_delayq import DelayedQueue
from examples.orders import shop
from examples.orders.display import Display
from examples.orders.ledger import Ledger, plan

ORDERS_PER_S = 75
WORKER_DEADLINE_S = 30.0
#: After the last due time the story ends once nothing has happened for this long: missing tasks are lost.
LOST_AFTER_S = 5.0
#: How long to listen, after everything should have happened, for tasks that run twice.
LISTEN_ON_S = 0.5
#: When a customer tries again to whom the shop could not answer.
TRY_AGAIN_S = 1.0

#: What is due within that time counts as due now: workers get tasks some milliseconds ahead.
DUE_NOW = timedelta(milliseconds=200)

#: What waits in Redis for the shop's workers, as celery_delayq stores it.
waiting_tasks = DelayedQueue(shop.database, shop.app.conf.task_default_queue)


class Journal:
    """Reads what the shop's workers write, and enters it into the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._orders = {order.id: order for order in ledger.orders}
        newest: Any = shop.database.xrevrange(shop.JOURNAL, count=1)
        self._position = newest[0][0] if newest else "0"

    def read(self, wait_s: float) -> bool:
        """Wait for news, at most `wait_s`. Returns whether there was any about our orders."""
        wait_ms = max(1, int(wait_s * 1000))  # 0 would be for ever
        streams: Any = shop.database.xread({shop.JOURNAL: self._position}, block=wait_ms)
        news = False
        for self._position, fields in streams[0][1] if streams else ():
            if order := self._orders.get(fields["order"]):  # else it is another story's
                order.cancelled_at.append(float(fields["cancelled_at"]))
                news = True
        return news


def play(
    ledger: Ledger,
    workers: list[str],
    display: Display,
    *,
    count_waiting: Callable[[], int] = waiting_tasks.size,
    pay: Callable[[str], bool | None] = shop.pay,
    when_placed: Callable[[], object] = lambda: None,
    patience_s: float = 5.0,
) -> None:
    """Place and pay all orders in real time, then wait for what becomes of them.

    Args:
        ledger: the orders.
        workers: the names of the workers.
        display: shows what happens.
        count_waiting: returns how many tasks wait in Redis.
        pay: see `shop.pay`; if it returns None, the customer tries again.
        when_placed: called when all orders are placed.
        patience_s: how long the workers have to tell what they hold, in seconds.
    """
    first = ledger.orders[0].id
    shop.place_order(first)  # opens the connections
    shop.pay(first)
    journal = Journal(ledger)
    start = time.time()
    # When something happens to which order: first it is placed, and later it may be paid.
    agenda = [(start + number / ORDERS_PER_S, number) for number in range(len(ledger.orders))]
    while agenda:
        display.update(ledger, count_waiting)
        moment, number = agenda[0]
        if time.time() < moment:
            journal.read(min(moment - time.time(), 0.1))
            continue
        heapq.heappop(agenda)
        order = ledger.orders[number]
        if order.due:
            order.pay_answer = pay(order.id)
            if order.pay_answer is None:
                heapq.heappush(agenda, (time.time() + TRY_AGAIN_S, number))
                journal.read(0.001)  # else nobody would, while many try again
            continue
        placed_at = time.time()
        order.due = placed_at + order.pay_within_s
        shop.place_order(order.id, order.pay_within_s)
        if order.pays_after_s is not None:
            heapq.heappush(agenda, (placed_at + order.pays_after_s, number))
        if order is ledger.orders[-1]:
            ledger.waited_then, ledger.held_by_workers = count_waiting(), held_by(workers, patience_s)
            when_placed()

    last_news = max(order.due for order in ledger.orders)
    while ledger.open and time.time() < last_news + LOST_AFTER_S:
        display.update(ledger, count_waiting)
        if journal.read(0.1):
            last_news = max(last_news, time.time())
    listen_until = time.time() + LISTEN_ON_S
    while time.time() < listen_until:
        display.update(ledger, count_waiting)
        journal.read(0.1)


def wait_for_workers(queues: set[str], command: str, display: Display) -> list[str]:
    """Return the names of the workers that run the tasks of some queues.

    Args:
        queues: the queues; a worker of any of them will do.
        command: what starts a worker.
        display: says that this waits.

    Raises:
        SystemExit: there are none, and none came within `WORKER_DEADLINE_S`.
    """
    display.say(f"Waiting for a worker: {command}")
    deadline = time.monotonic() + WORKER_DEADLINE_S
    while time.monotonic() < deadline:
        queues_of = shop.app.control.inspect(timeout=0.5).active_queues() or {}
        names = [worker for worker, consumed in queues_of.items() if any(queue["name"] in queues for queue in consumed)]
        if names:
            return names
    sys.exit(f"No worker came. Start one: {command}")


def held_by(workers: list[str], timeout_s: float) -> int | None:
    """Return how many tasks that are not due yet these workers hold in memory; None if no one answers in time."""
    soon = datetime.now(timezone.utc) + DUE_NOW
    answers = shop.app.control.inspect(destination=workers, timeout=timeout_s).scheduled() or {}
    held = [datetime.fromisoformat(task["eta"]) for tasks in answers.values() for task in tasks]
    return sum(eta > soon for eta in held) if answers else None


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; ends the process if it is wrong or asks for help."""
    parser = argparse.ArgumentParser(description="Play the story of the orders.")
    parser.add_argument("--orders", type=int, default=300, help="how many (300)")
    parser.add_argument("--longest", type=float, default=8, help="longest time to pay, seconds (8)")
    options = parser.parse_args(arguments)
    if options.orders < 1 or options.longest < 1:
        parser.error("--orders and --longest must be 1 or more")
    return options


def main() -> int:
    """Play the story. Returns 0 if all was right, else 1."""
    options = options_of(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ledger = plan(options.orders, options.longest, prefix=uuid.uuid4().hex[:6])
    display = Display()
    try:
        shop.database.ping()
        workers = wait_for_workers({waiting_tasks.name}, "celery -A examples.orders.shop worker", display)
        display.say(
            f"{options.orders} orders, to be paid within 1 to {options.longest:g} s. Half of the customers never pay."
        )
        with display:
            play(ledger, workers, display)
        shop.database.expire(shop.JOURNAL, 3600)
    except (redis.RedisError, kombu.exceptions.OperationalError) as error:
        print(f"Cannot use the Redis at {shop.REDIS} (set SHOP_REDIS): {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped before the end.", file=sys.stderr)
        return 130
    display.summary(ledger)
    return 0 if ledger.all_right() else 1


if __name__ == "__main__":
    sys.exit(main())
