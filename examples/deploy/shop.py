"""The app that the files of this folder run: put yours in its place."""

import os

from celery import Celery

from celery_delayq import DelayQ

app = Celery("shop", broker=os.environ.get("BROKER_URL", "delayq://localhost:6379/0"))
delayq = DelayQ(app)

# Every worker plans periodic tasks, so no beat process is needed.
app.conf.beat_scheduler = "celery_delayq.beat:Scheduler"
app.conf.beat_schedule = {"report": {"task": "shop.report", "schedule": 300.0}}


@app.task(name="shop.cancel_unpaid", ignore_result=True)
def cancel_unpaid(order_id: str) -> None:
    """Cancel an order that nobody paid for in time."""
    print(f"{order_id} is cancelled")


@app.task(name="shop.report", ignore_result=True)
def report() -> None:
    """Report something, every five minutes."""
    print("all is well")
