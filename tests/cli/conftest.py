"""The broker and the app of the integration tests, and their commands in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from tests.cli.running import Command, Done, run
from tests.integration.conftest import app, broker_client, broker_server, broker_url, ledger_url, waiting

__all__ = ["app", "broker_client", "broker_server", "broker_url", "ledger_url", "waiting"]


@pytest.fixture(autouse=True)
def known_queues(app: Celery) -> Iterator[None]:
    """The app of the module has no queues of other tests: it adds each queue to which it sends."""
    queues = app.amqp.queues
    before = dict(queues)
    yield
    for name in queues.keys() - before.keys():
        del queues[name]


@pytest.fixture
def command(app: Celery, waiting: DelayedQueue) -> Command:
    """Run `celery delayq ...` in this process, on an empty broker."""

    def run_it(*args: Any, input: bytes | None = None) -> Done:
        return run(app, *args, input=input)

    return run_it
