"""A shop that cancels orders which nobody pays for in time, and reminds their customers."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_delayq import DelayQ

app = Celery("shop", broker="delayq://redis.example:6379/0")
app.conf.task_routes = {"shop.remind": {"queue": "mail"}}
delayq = DelayQ(app)

PAY_WITHIN_S = 30 * 60
REMIND_AFTER_S = 20 * 60

# Stands for your database.
orders: dict[int, str] = {}
outbox: list[str] = []


class MailServerDown(Exception):
    """No mail can be sent now."""


def place_order(number: int) -> None:
    """Take an order: its customer is reminded after 20 minutes, and it is cancelled after 30."""
    orders[number] = "placed"
    remind.apply_async((number,), countdown=REMIND_AFTER_S, task_id=f"remind:{number}")
    cancel_unpaid.apply_async((number,), countdown=PAY_WITHIN_S, task_id=f"cancel:{number}")


def pay(number: int) -> bool:
    """Accept a payment, unless it comes too late."""
    if not delayq.cancel(f"cancel:{number}"):
        return False
    delayq.cancel(f"remind:{number}")
    orders[number] = "paid"
    return True


def send_mail(text: str) -> None:
    """Send a mail."""
    outbox.append(text)


@app.task(name="shop.remind", bind=True, max_retries=2)
def remind(self: Any, number: int) -> None:
    """Remind a customer; try again a minute later if that fails."""
    try:
        send_mail(f"order {number} is not paid yet")
    except MailServerDown as exc:
        raise self.retry(exc=exc, countdown=60) from exc


@app.task(name="shop.cancel_unpaid")
def cancel_unpaid(number: int) -> None:
    """Cancel an order, because its time is over."""
    orders[number] = "cancelled"
    send_mail(f"order {number} is cancelled")
