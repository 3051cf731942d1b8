"""One page for all tests of this folder: each process of pytest-xdist has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.web.chromium import STEP_TIMEOUT_MS
from tests.web.sites import Site, standalone

expect.set_options(timeout=STEP_TIMEOUT_MS)


@pytest.fixture(scope="package")
def broker() -> Iterator[PrivateRedis]:
    """The shop's broker."""
    with PrivateRedis() as server:
        yield server


@pytest.fixture(scope="package")
def alone(broker: PrivateRedis, ledger_url: str) -> Iterator[Site]:
    """The shop's page, `celery -A tests.web.shop delayq web`."""
    with standalone(broker=brokers.url_of(broker), ledger=ledger_url) as site:
        yield site
