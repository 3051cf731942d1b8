"""The shop whose delayed tasks the operators' page shows: a Celery app with DelayQ.

In a process of its own, the environment says where its broker is, as for `tests.worker_app`: `BROKER`, `LEDGER` and
`CONF`.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery

from celery_delayq import DelayQ

#: Queues that its workers consume; tasks that name none go to `celery`.
QUEUES = ("celery", "mail", "reports")

#: Periodic tasks of the configuration; those that were added at run time are in `tests.web.filling`.
BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "tidy carts": {"task": "shop.carts.tidy", "schedule": 300.0},
    "daily report": {
        "task": "shop.reports.daily",
        "schedule": 86400.0,
        "kwargs": {"recipients": ["owner@shop.example"]},
        "options": {"queue": "reports", "priority": 6},
    },
}


def make_app(broker: str, ledger: str, **conf: Any) -> Celery:
    """Return the app.

    Args:
        broker: the broker URL.
        ledger: URL of its results.
        conf: further configuration.
    """
    app = Celery("shop", broker=broker, backend=ledger, set_as_current=False)
    app.conf.update(
        beat_schedule=BEAT_SCHEDULE,
        beat_scheduler="delayq",
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        worker_hijack_root_logger=False,
    )
    app.conf.update(conf)
    app.delayq = DelayQ(app)

    def task(name: str, **options: Any) -> Any:
        return app.task(name=name, lazy=False, shared=False, **options)

    @task("shop.orders.remind")
    def remind(order: int, *, channel: str = "mail") -> str:
        """Remind a customer of an order that was not paid."""
        return f"reminded of order {order} by {channel}"

    @task("shop.orders.ship")
    def ship(order: int) -> int:
        """Ship an order."""
        return order

    @task("shop.orders.invoice")
    def invoice(orders: list[int]) -> int:
        """Write one invoice for several orders: the body of a chord."""
        return len(orders)

    @task("shop.payments.charge", bind=True, max_retries=5)
    def charge(self: Any, order: int, cents: int) -> None:
        """Charge a card whose bank is not there: it is tried again in ten minutes."""
        raise self.retry(exc=ConnectionError("the bank did not answer"), countdown=600)

    @task("shop.mail.send")
    def send(to: str, subject: str, **fields: Any) -> None:
        """Send a mail."""

    @task("shop.carts.tidy")
    def tidy() -> None:
        """Forget carts that nobody came back to."""

    @task("shop.reports.daily")
    def daily(recipients: list[str]) -> None:
        """Write the report of a day."""

    @task("shop.stock.count")
    def count(seconds: float) -> float:
        """Count the stock, which takes a while: what runs can be seen running."""
        time.sleep(seconds)
        return seconds

    return app


if "LEDGER" in os.environ:
    app = make_app(os.environ["BROKER"], os.environ["LEDGER"], **json.loads(os.environ["CONF"]))
