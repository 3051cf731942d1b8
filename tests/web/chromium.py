"""The browser of the tests: the machine's Chromium, which Playwright drives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.support import missing

#: Chromium's own connections to the internet are off.
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),  # the tests may run as root
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

#: Time limit of one step in the browser, in ms: for a machine with much else to do.
STEP_TIMEOUT_MS = 30_000


def find_chromium() -> str:
    """Return the path of Chromium; without one, skip the test or fail it."""
    paths = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return next(paths, None) or missing("no Chromium (apt-get install chromium)")


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser for as long as the block lasts.

    An asyncio loop runs in this thread until then, so no other test of this process may run in the block.
    """
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS), timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()
