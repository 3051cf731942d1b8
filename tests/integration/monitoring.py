"""What monitors hear: Celery's events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from celery import Celery

from tests.support import wait_until


@contextmanager
def task_events(app: Celery, client: redis.Redis, kind: str) -> Iterator[list[dict[str, Any]]]:
    """Listen to events of one kind while the block lasts; `client` is one of the broker."""
    heard: list[dict[str, Any]] = []
    before = client.pubsub_numpat()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={kind: heard.append})
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
        thread.start()
        try:
            wait_until(lambda: client.pubsub_numpat() > before, "the subscription")
            yield heard
        finally:
            receiver.should_stop = True
            thread.join()
