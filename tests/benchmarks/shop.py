"""The app of the benchmarks: on stock Celery, on celery_delayq or on a peer, as the broker URL says."""

from __future__ import annotations

import json
import os
import time
from importlib import import_module
from typing import Any

from celery import Celery

from celery_delayq import DelayQ

#: Variant -> scheme of its broker URL.
SCHEMES = {"stock": "redis", "delayq": "delayq", "celery-redis-plus": "valkey", "RabbitMQ": "amqp"}


def broker_url(variant: str, port: int, db: int = 0) -> str:
    """Return the URL of a local server for a variant."""
    scheme = SCHEMES[variant]
    return f"amqp://guest:guest@127.0.0.1:{port}//" if scheme == "amqp" else f"{scheme}://127.0.0.1:{port}/{db}"


def make_app(broker: str, ledger: str | None = None) -> Celery:
    """Return the app.

    Args:
        broker: the broker URL.
        ledger: the file in which tasks write down when they ran; only workers need it.
    """
    app = Celery("bench", broker=broker, set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
    if broker.startswith("delayq"):
        app.delayq = DelayQ(app)
    elif broker.startswith("valkey"):
        import_module("celery_redis_plus")  # it makes the scheme known
    elif broker.startswith("amqp"):  # what native delays want
        app.conf.update(task_default_queue_type="quorum", task_default_exchange_type="topic")
    # Opened before the pool forks: appending lines of this size is atomic.
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if ledger else -1

    @app.task(bind=True, name="note", lazy=False, shared=False)
    def note(self: Any, number: int) -> None:
        """Write down: the number, the time, and when it should have been."""
        now = time.time()
        os.write(descriptor, f"{number} {now:.6f} {self.request.eta or '-'}\n".encode())

    @app.task(name="empty", lazy=False, shared=False)
    def empty(number: int = 0) -> None:
        """Do nothing."""

    @app.task(name="busy", lazy=False, shared=False)
    def busy(seconds: float) -> None:
        """Keep the process busy."""
        time.sleep(seconds)

    return app


if "LEDGER" in os.environ:
    app = make_app(os.environ["BROKER"], os.environ["LEDGER"])
    app.conf.update(json.loads(os.environ.get("CONF", "{}")))
