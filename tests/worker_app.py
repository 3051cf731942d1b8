"""The Celery app that the tests' workers run, and that the tests publish with.

In a worker, the environment says everything: `BROKER`, `LEDGER`, and `CONF`, JSON of further configuration. A test
makes the same app with `make_app`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from celery import Celery
from redis.credentials import UsernamePasswordCredentialProvider

from celery_delayq import DelayQ
from tests.ledger import Ledger

#: The user whom `Credentials` names.
USER, PASSWORD = "worker", "s3cret/pass:word"


class Credentials(UsernamePasswordCredentialProvider):
    """A credential provider, as kombu takes it by name."""

    def __init__(self) -> None:
        super().__init__(USER, PASSWORD)


def make_app(broker: str, ledger: str, *, with_delayq: bool = True, **conf: Any) -> Celery:
    """Return the app; its results are in the ledger's database."""
    app = Celery("tests", broker=broker, backend=ledger, set_as_current=False)
    app.conf.update(
        accept_content=["json", "pickle"],
        broker_connection_retry_on_startup=True,
        task_acks_late=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
    )
    app.conf.update(conf)
    if with_delayq:
        app.delayq = DelayQ(app)
    _add_tasks(app, Ledger(ledger))
    return app


def _add_tasks(app: Celery, ledger: Ledger) -> None:
    def task(**options: Any) -> Callable[..., Any]:
        # Not lazy, so that a function may become a task of several apps.
        return app.task(bind=True, lazy=False, **options)

    @task(name="note")
    def note(self: Any, value: Any = None) -> Any:
        """Return the value, and write it down."""
        ledger.record(self.request.id, value)
        return value

    @task(name="note_request")
    def note_request(self: Any) -> str | None:
        """Write down what the task sees of its request."""
        request = self.request
        eta = str(request.eta) if request.eta else None
        ledger.record(request.id, {"eta": eta, "priority": request.delivery_info["priority"]})
        return eta

    @task(name="add")
    def add(self: Any, x: int, y: int) -> int:
        ledger.record(self.request.id)
        return x + y

    @task(name="total")
    def total(self: Any, numbers: list[int]) -> int:
        ledger.record(self.request.id)
        return sum(numbers)

    @task(name="try_again", max_retries=3)
    def try_again(self: Any, times: int, countdown: float) -> int:
        """Retry so many times."""
        ledger.record(f"{self.request.id}/{self.request.retries}")
        if self.request.retries < times:
            raise self.retry(countdown=countdown)
        return self.request.retries

    @task(name="slow", acks_late=True)
    def slow(self: Any, seconds: float) -> None:
        import time

        ledger.record(self.request.id)
        time.sleep(seconds)

    @task(name="limited", rate_limit="20/s")
    def limited(self: Any) -> None:
        ledger.record(self.request.id)

    @task(name="late_ack", acks_late=True)
    def late_ack(self: Any) -> bool:
        ledger.record(self.request.id)
        return True


if "LEDGER" in os.environ:
    app = make_app(os.environ["BROKER"], os.environ["LEDGER"], **json.loads(os.environ["CONF"]))
