"""A worker per module, its ledger, and an app that publishes to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery
from kombu import pools

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.brokers import Server
from tests.integration.long_tasks import add_long_tasks
from tests.ledger import Ledger
from tests.worker_app import publisher


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
def broker_server(broker_kind: str, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The broker of this module, with a port of its own. kombu's pools outlive modules, and a port may come again."""
    if broker_kind == "cluster":
        yield brokers.emptied(request.getfixturevalue("whole_cluster"))
        return
    pools.reset()
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def broker_client(broker_server: Server) -> Iterator[redis.Redis]:
    """A client of the broker."""
    with broker_server.client() as client:
        yield client


@pytest.fixture(scope="module")
def broker_url(broker_server: Server) -> str:
    """The URL of the broker, for our transport."""
    return brokers.url_of(broker_server)


@pytest.fixture(scope="module")
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    """An app to publish with."""
    with publisher(broker_url, ledger_url) as app:
        yield app


@pytest.fixture
def waiting(broker_client: redis.Redis) -> Iterator[DelayedQueue]:
    """The delayed queue of `celery`, empty at first and afterwards."""
    yield DelayedQueue(broker_client, "celery")
    # All but the registry, in which pooled connections know their queues to be.
    broker_client.delete("-", *(key for key in broker_client.scan_iter() if key != b"delayq:queues"))


@pytest.fixture(scope="module")
def long_tasks(app: Celery, ledger_url: str) -> None:
    """The app has the long tasks, too."""
    add_long_tasks(app, Ledger(ledger_url))


@pytest.fixture
def empty_broker(broker_client: redis.Redis) -> None:
    """The broker is empty at first."""
    broker_client.flushall()
