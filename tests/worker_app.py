"""The Celery app that the tests' workers run, and that the tests publish with.

In a worker, the environment says everything: `BROKER`, `LEDGER`, and `CONF`, JSON of further configuration. A test
makes the same app with `make_app`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from celery import Celery
from celery.worker.request import Request
from redis.credentials import UsernamePasswordCredentialProvider

from celery_delayq import DelayQ, Unique
from celery_delayq.options.unique import For
from tests.ledger import Ledger

#: The user whom `Credentials` names.
USER, PASSWORD = "worker", "s3cret/pass:word"


class Credentials(UsernamePasswordCredentialProvider):
    """A credential provider, as kombu takes it by name."""

    def __init__(self) -> None:
        super().__init__(USER, PASSWORD)


def make_app(broker: str, ledger: str, *, delayqs: int = 1, **conf: Any) -> Celery:
    """Return the app; its results are in the ledger's database.

    Args:
        delayqs: how often `DelayQ(app)` is made.
    """
    app = Celery("tests", broker=broker, backend=ledger, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_acks_late=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
    )
    app.conf.update(conf)
    for _ in range(delayqs):
        app.delayq = DelayQ(app)
    add_tasks(app, Ledger(ledger))
    return app


@contextmanager
def publisher(broker: str, ledger: str, **conf: Any) -> Iterator[Celery]:
    """An app to publish with, which leaves nothing open."""
    app = make_app(broker, ledger, **conf)
    try:
        yield app
    finally:
        # Results unsubscribe when they are collected, for which their server must still be there.
        gc.collect()
        app.close()


@contextmanager
def protocol_1(app: Celery) -> Iterator[None]:
    """The app sends messages of Celery's protocol 1, which has everything in the body."""
    app.conf.task_protocol = 1
    app.amqp.__dict__.pop("create_task_message", None)
    try:
        yield
    finally:
        app.conf.task_protocol = 2
        app.amqp.__dict__.pop("create_task_message", None)


def add_tasks(app: Celery, ledger: Ledger) -> None:
    """Give the app its tasks, which write in the ledger that they ran."""

    def task(**options: Any) -> Callable[..., Any]:
        # Not shared: they are tasks of this app only.
        return app.task(bind=True, lazy=False, shared=False, **options)

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

    @task(name="process_id")
    def process_id(self: Any) -> int:
        """Return in which process it runs."""
        ledger.record(self.request.id, os.getpid())
        return os.getpid()

    @task(name="limited", rate_limit="20/s")
    def limited(self: Any) -> None:
        ledger.record(self.request.id)

    @task(name="late_ack", acks_late=True)
    def late_ack(self: Any) -> bool:
        ledger.record(self.request.id)
        return True

    def work(self: Any, seconds: float) -> None:
        """Take a while, and write down the start and the end."""
        with ledger.execution(self.request.id):
            time.sleep(seconds)

    class Noted(Request):
        """Writes down that it is accepted, before it is acknowledged early."""

        def on_accepted(self, pid: int, time_accepted: float) -> None:
            ledger.accept(self.id, pid)
            super().on_accepted(pid, time_accepted)

    def occurrence(self: Any, name: str) -> None:
        """Write down which entry of the schedule it is of, and when it is due."""
        with ledger.execution(self.request.id):
            ledger.record(self.request.id, [name, self.request.eta])

    # Acknowledged early, one is lost if its worker is killed while it runs.
    task(name="occurrence", acks_late=True)(occurrence)
    task(name="occurrence, expires", acks_late=True, expires=6)(occurrence)
    for for_ in get_args(For):
        # One that is acknowledged early keeps its key for an hour if its worker is killed.
        task(name=f"occurrence, {for_}", unique=Unique(for_=for_), acks_late=for_ == "until_done")(occurrence)

    @task(name="deadly", acks_late=True, ignore_result=True)
    def deadly(self: Any) -> None:
        """Kill all processes of the worker."""
        with ledger.execution(self.request.id):
            os.killpg(os.getpgrp(), signal.SIGKILL)

    task(name="work", acks_late=False, ignore_result=True, Request=Noted)(work)
    task(name="work_late", acks_late=True, ignore_result=True, Request=Noted)(work)


if "LEDGER" in os.environ:
    app = make_app(os.environ["BROKER"], os.environ["LEDGER"], **json.loads(os.environ["CONF"]))
