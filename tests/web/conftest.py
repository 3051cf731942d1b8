"""A browser, and a shop's broker with the page on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import Celery
from playwright.sync_api import Browser

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.integration.conftest import ledger_url
from tests.web.chromium import running_chromium
from tests.web.filling import shop
from tests.web.sites import Site, standalone
from tests.web.visit import DESKTOP, PHONE, Scheme, Visits

__all__ = ["alone", "app", "broker", "browser", "client", "ledger_url", "scheme", "size", "visit"]


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


@pytest.fixture(scope="module")
def alone(broker: PrivateRedis, ledger_url: str) -> Iterator[Site]:
    """The shop's page, `celery -A tests.web.shop delayq web`."""
    with standalone(broker=brokers.url_of(broker), ledger=ledger_url) as site:
        yield site


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of this folder.

    Not for the session: other tests of this process start asyncio loops, and cannot while Playwright has one.
    """
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    """Opens pages: `page = visit(url)`. Whatever goes wrong in one fails the test at its end, see `Watch`."""
    visits = Visits(browser)
    try:
        yield visits
    finally:
        troubles = visits.end()
    if troubles:
        pytest.fail("In the browser:\n    " + "\n    ".join(troubles), pytrace=False)


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> Scheme:
    """Either color scheme."""
    scheme: Scheme = request.param
    return scheme


@pytest.fixture(params=[PHONE, DESKTOP], ids=["360px", "1280px"])
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    """The window of a phone, and of a desktop."""
    width, height = request.param
    return width, height
