"""A worker per module, its ledger, and an app that publishes to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.worker_app import make_app


@pytest.fixture(scope="session")
def ledger_url(redis_server: PrivateRedis) -> str:
    """Where the ledger is: not with the broker, which some tests empty or kill."""
    return f"redis://127.0.0.1:{redis_server.port}/9"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """An empty ledger."""
    ledger = Ledger(ledger_url)
    ledger.clear()
    yield ledger
    ledger.client.close()


@pytest.fixture(scope="module")
def broker_url(redis_server: PrivateRedis) -> str:
    """A database of the session's Redis, emptied, as broker of this module."""
    with redis_server.client(db=5) as client:
        client.flushdb()
    return f"delayq://127.0.0.1:{redis_server.port}/5"


@pytest.fixture(scope="module")
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    """An app to publish with."""
    app = make_app(broker_url, ledger_url)
    yield app
    app.close()
