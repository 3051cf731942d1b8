"""Visits: pages of a site, each in a browser context of its own, under watch."""

from __future__ import annotations

from typing import Any, Literal
from weakref import WeakSet

from playwright.sync_api import Browser, BrowserContext, Page

from tests.web.chromium import STEP_TIMEOUT_MS
from tests.web.watch import Watch

#: Widths and heights of windows, in CSS pixels.
PHONE, DESKTOP = (360, 740), (1280, 800)

#: Contexts of pages whose scripts are off.
WITHOUT_SCRIPTS: WeakSet[BrowserContext] = WeakSet()

Scheme = Literal["light", "dark"]


class Visits:
    """Opens pages, and knows in the end what went wrong in them. The fixture `visit` is one; call it to open a page."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._watches: dict[BrowserContext, Watch] = {}

    def __call__(
        self,
        url: str,
        *,
        size: tuple[int, int] = DESKTOP,
        scheme: Scheme = "light",
        scripts: bool = True,
        origins: tuple[str, ...] = (),
        **options: Any,
    ) -> Page:
        """Open a page as in a new private window, and go to a URL.

        Args:
            url: where to go; its origin is the site's.
            size: width and height of the window, in CSS pixels.
            scheme: the color scheme that the user prefers.
            scripts: whether JavaScript runs.
            origins: further origins that the page may send requests to.
            options: further options of `Browser.new_context`.
        """
        context = self._browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            java_script_enabled=scripts,
            **{
                "reduced_motion": "reduce",  # no test waits for an animation
                "locale": "en-GB",
                "timezone_id": "Asia/Kolkata",  # not the server's: it is half an hour off everywhere else
                **options,
            },
        )
        context.set_default_timeout(STEP_TIMEOUT_MS)
        if not scripts:
            WITHOUT_SCRIPTS.add(context)
        self._watches[context] = Watch(context, (url, *origins))
        page = context.new_page()
        page.goto(url)
        return page

    def watch(self, page: Page) -> Watch:
        """Return the watch of a page that was opened here."""
        return self._watches[page.context]

    def end(self) -> list[str]:
        """Close all pages; return what went wrong in them."""
        for context, watch in self._watches.items():
            watch.settle(context.pages)
            context.close()
        return [trouble for watch in self._watches.values() for trouble in watch.verdict()]
