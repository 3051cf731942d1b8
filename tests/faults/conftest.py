"""The ledger of the integration tests, and a broker per test: each of them breaks it."""

from __future__ import annotations

import pytest

from examples.private_redis import PrivateRedis
from tests.integration.conftest import ledger, ledger_url

__all__ = ["broker", "broker_url", "ledger", "ledger_url"]


@pytest.fixture
def broker(durable_server: PrivateRedis) -> PrivateRedis:
    """A broker that forgets nothing when it is killed."""
    return durable_server


@pytest.fixture
def broker_url(broker: PrivateRedis) -> str:
    """Its URL, for our transport."""
    return f"delayq://127.0.0.1:{broker.port}/0"
