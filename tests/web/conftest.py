"""A browser, and what it looks at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.chromium import running_chromium
from tests.web.visit import DESKTOP, PHONE, Scheme, Visits


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
