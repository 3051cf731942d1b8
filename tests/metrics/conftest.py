"""The broker and the app of the integration tests, and the metrics as Prometheus parses them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from celery_delayq.metrics.source import Source
from tests.integration.conftest import app, broker_client, broker_server, broker_url, ledger, ledger_url, waiting
from tests.metrics.parsing import Scrape

__all__ = ["app", "broker_client", "broker_server", "broker_url", "ledger", "ledger_url", "waiting"]


@pytest.fixture
def scrape(app: Celery) -> Iterator[Scrape]:
    """Read the metrics."""
    source = Source(app)
    yield Scrape(source.read)
    source.close()
