"""A shop that cancels orders which nobody pays for in time: a Celery app with two lines more.

celery -A examples.orders.shop worker
"""

import os
import time

import redis
from celery import Celery

from celery_delayq import DelayQ  # the first new line

REDIS = os.environ.get("SHOP_REDIS", "localhost:6379/0")

app = Celery("shop", broker=f"delayq://{REDIS}")  # delayq:// instead of redis://
delayq = DelayQ(app)  # the second new line

# Only because this is an example: your Redis may serve other apps, whose tasks are theirs.
app.conf.task_default_queue = "example-orders"
# `celery inspect scheduled` is to name only what workers hold, which is what the story counts.
app.conf.delayq_inspect_limit = 0

# Stands for your database. The journal tells what happened to which order.
database = redis.Redis.from_url(f"redis://{REDIS}", decode_responses=True)
JOURNAL = "example-orders:journal"


def place_order(order_id: str, pay_within_s: float = 30 * 60) -> None:
    """Take an order, which is cancelled if it is not paid in time."""
    cancel_unpaid.apply_async((order_id,), countdown=pay_within_s, task_id=f"cancel:{order_id}")


def pay(order_id: str) -> bool:
    """Accept a payment, unless it comes too late.

    Whatever happens at the same moment: either this call gets the task or a worker does. So its answer
    is what decides, and no order is both paid and cancelled.
    """
    return delayq.cancel(f"cancel:{order_id}")


@app.task(ignore_result=True)
def cancel_unpaid(order_id: str) -> None:
    """Cancel an order, because its time is over."""
    database.xadd(JOURNAL, {"order": order_id, "cancelled_at": time.time()}, maxlen=100_000)
