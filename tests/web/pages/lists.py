"""What the tests do in the lists of the page, as an operator does it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from playwright.sync_api import Error, Locator, Page, Route, expect


def rows(page: Page) -> Locator:
    """The rows of the list: those of tasks, or of dead letters."""
    return page.locator("#tasks tbody tr, #letters tbody tr").filter(has=page.get_by_role("checkbox"))


def shown(page: Page) -> list[str]:
    """Return the ids that the list shows."""
    return page.locator("td.id a").all_text_contents()


def expect_ids(page: Page, ids: Iterable[str]) -> None:
    """Wait until the list shows these ids, in this order."""
    expect(page.locator("td.id a")).to_have_text(list(ids))


def select(page: Page, *ids: str) -> None:
    """Check the boxes of these ids."""
    for one in ids:
        page.get_by_role("checkbox", name=f"Select {one}", exact=True).check()


def press(page: Page, *buttons: str) -> None:
    """Press buttons, one page after the other."""
    for name in buttons:
        page.get_by_role("button", name=name, exact=True).click()


def said(page: Page) -> Locator:
    """What the page says that was done."""
    return page.get_by_role("status")


class Held:
    """Holds back requests of one method to a path of a page, after the first ones.

    Args:
        page: the page.
        path: the path.
        method: the method.
        after: how many go on before.
    """

    def __init__(self, page: Page, path: str, method: str = "POST", *, after: int = 0) -> None:
        self._method, self._after = method, after
        self._held: list[Route] = []
        page.route(f"**/{path}*", self._hold)

    def _hold(self, route: Route) -> None:
        is_held = route.request.method == self._method and self._after <= 0
        self._after -= route.request.method == self._method
        if is_held:
            self._held.append(route)
        else:
            route.continue_()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # A page with a request that is held back does not close.
        for route in self._held:
            with suppress(Error):  # the page has given it up
                route.abort()

    def go_on(self) -> None:
        """Let them go on, and all that come."""
        self._after = 1_000_000
        for route in self._held:
            route.continue_()
        self._held.clear()
