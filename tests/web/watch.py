"""Watch: what must not happen in a browser while a test uses a site."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Error, Page, Request, WebError

#: Tells the console of each violation of the Content-Security-Policy, also of those that Chromium only reports.
_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", event => console.error(
    "securitypolicyviolation: " + event.effectiveDirective + " blocked " + event.blockedURI + " at "
    + event.sourceFile + ":" + event.lineNumber + " " + event.sample));
"""

#: URLs of these schemes need no server.
_LOCAL = ("about", "blob", "data")


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


class Watch:
    """Notes errors on the console, violations of the Content-Security-Policy, dialogs, and foreign requests.

    A response of 400 or more is an error on the console, too; tests that provoke one call `expect`.

    Args:
        context: the browser context to watch, before it has pages.
        origins: origins of the site.
    """

    def __init__(self, context: BrowserContext, origins: Iterable[str]) -> None:
        self.origins = set(map(origin_of, origins))
        self.troubles: list[str] = []
        self._expected: list[str] = []
        context.add_init_script(_REPORT_VIOLATIONS)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("dialog", self._on_dialog)
        context.on("request", self._on_request)
        context.on("page", lambda page: page.on("crash", self._on_crash))

    def expect(self, *texts: str) -> None:
        """Say which troubles the test provokes: those that contain one of these texts. Each must happen."""
        self._expected.extend(texts)

    def settle(self, pages: Iterable[Page]) -> None:
        """Wait until what pages have reported has arrived: the browser reports in order."""
        for page in pages:
            with suppress(Error):  # a page without scripts, or a closed one
                page.evaluate("0")

    def verdict(self) -> list[str]:
        """Return what was not expected to happen, and what was expected and did not."""
        surprises = [trouble for trouble in self.troubles if not any(text in trouble for text in self._expected)]
        absent = [text for text in self._expected if not any(text in trouble for trouble in self.troubles)]
        return surprises + [f"expected, but it did not happen: {text}" for text in absent]

    def _on_console(self, message: ConsoleMessage) -> None:
        where = message.location
        if urlsplit(where["url"]).path == "/favicon.ico":
            return  # the browser asks by itself where a page names no icon, as an error page of plain text cannot
        if message.type in ("error", "warning", "assert"):
            self.troubles.append(f"console {message.type}: {message.text} ({where['url']}:{where['lineNumber']})")

    def _on_error(self, error: WebError) -> None:
        self.troubles.append(f"script error: {error.error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.type}: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if urlsplit(request.url).scheme not in _LOCAL and origin_of(request.url) not in self.origins:
            self.troubles.append(f"foreign request: {request.method} {request.url}")

    def _on_crash(self, page: Page) -> None:
        self.troubles.append(f"the page crashed: {page.url}")
