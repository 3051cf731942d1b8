"""An app with a Broadcast queue: a task that is sent to it runs in each worker."""

from __future__ import annotations

import json
import os

from celery import Celery
from kombu import Queue
from kombu.common import Broadcast

from tests.worker_app import make_app

APP = "tests.integration.broadcast_app"

QUEUES = {"task_queues": (Broadcast("to_all"), Queue("celery"))}


def broadcast(app: Celery, count: int) -> list[str]:
    """Send so many tasks to each worker; return their ids."""
    with app.pool.acquire(block=True) as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        # Celery does not declare the exchange of a Broadcast queue, and without that kombu takes it for a direct one.
        app.amqp.queues["to_all"].exchange(producer.channel).declare()
        return [app.tasks["process_id"].apply_async(queue="to_all", producer=producer).id for _ in range(count)]


if "LEDGER" in os.environ:
    app = make_app(os.environ["BROKER"], os.environ["LEDGER"], **json.loads(os.environ["CONF"]), **QUEUES)
