"""A shop's broker, for the web page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.integration.conftest import ledger_url
from tests.web.filling import shop

__all__ = ["app", "broker", "client", "ledger_url"]


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateRedis]:
    """The shop's broker."""
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def client(broker: PrivateRedis) -> Iterator[redis.Redis]:
    """A client of the shop's broker."""
    with broker.client() as client:
        yield client


@pytest.fixture
def app(broker: PrivateRedis, ledger_url: str) -> Iterator[Celery]:
    """The shop, whose broker is empty at first: see `filling.fill` and `hostile.fill_hostile`."""
    with shop(broker, ledger_url) as app:
        yield app
