"""A browser, and one page for all tests of this folder: each process of pytest-xdist has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.web.chromium import STEP_TIMEOUT_MS, running_chromium
from tests.web.sites import kinds, served
from tests.web.visit import DESKTOP, PHONE, Scheme, Visits

expect.set_options(timeout=STEP_TIMEOUT_MS)


@pytest.fixture(scope="package")
def broker() -> Iterator[PrivateRedis]:
    """The shop's broker."""
    with PrivateRedis() as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with the page served in each way that `--web-in` names."""
    if "url" in metafunc.fixturenames:
        metafunc.parametrize("kind", kinds(metafunc.config.getoption("--web-in")), scope="package")


@pytest.fixture(scope="package")
def url(kind: str, broker: PrivateRedis, ledger_url: str) -> Iterator[str]:
    """The URL of the shop's page, with a slash at the end."""
    with served(kind, broker=brokers.url_of(broker), ledger=ledger_url) as url:
        yield url


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
