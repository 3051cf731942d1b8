"""`celery purge`: Celery's command keeps its meaning."""

from __future__ import annotations

import logging

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from tests.integration.publishing import publish
from tests.workers import CeleryCommand

pytestmark = pytest.mark.on_cluster


def test_ready_messages_go_and_delayed_ones_are_counted(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str
) -> None:
    publish(app)
    publish(app, priority=3)
    app.tasks["note"].delay()
    with CeleryCommand("purge", "--force", broker=broker_url, ledger=ledger_url) as purge:
        assert purge.wait() == 0
        assert "Purged 1 message from 1 known task queue" in purge.log
        assert "Purge left 2 delayed messages of queue celery. To remove them" in purge.log
        assert "run `celery -A tests.worker_app delayq cancel --queue celery`" in purge.log
    assert len(app.delayq.scheduled()) == 2
    assert not waiting.client.llen("celery")


def test_without_delayed_ones_it_says_nothing(
    app: Celery, waiting: DelayedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    app.tasks["note"].delay()
    with caplog.at_level(logging.INFO, "celery_delayq"):
        assert app.control.purge() == 1
    assert caplog.messages == []
