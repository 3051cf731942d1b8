"""The Python half of the example: `celery -A examples.java.shop worker`. The Java half is Shop.java."""

from __future__ import annotations

import os

from celery import Celery

from celery_delayq import DelayQ

app = Celery("shop", broker=os.environ.get("BROKER", "delayq://localhost:6379/0"))
app.conf.task_ignore_result = True
# So that Java can take an order back with RDelayedQueue.remove() whoever offered it.
app.conf.broker_transport_options = {"mirror_list": True}
DelayQ(app)


@app.task(name="shop.cancel_unpaid")
def cancel_unpaid(order: int) -> None:
    """Cancel an order, and tell Java a second later, in the queue from which it takes."""
    app.send_task("shop.cancelled", (order,), {"reason": "not paid"}, countdown=1, queue="to_java")
