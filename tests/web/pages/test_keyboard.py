"""The keyboard alone is enough."""

from __future__ import annotations

import pytest
import redis
from celery import Celery
from playwright.sync_api import Page, expect

from tests.web.filling import add_orders, fill
from tests.web.pages.lists import expect_ids, said
from tests.web.visit import Scheme, Visits

#: What has the focus, by its text, its label or its name.
_FOCUSED = """() => {
    const it = document.activeElement;
    return it.getAttribute("aria-label") || it.textContent.trim() || it.name || it.value || it.localName;
}"""


def tab_to(page: Page, wanted: str, *, key: str = "Tab") -> None:
    """Press Tab until something has the focus; fail if it never has."""
    seen = []
    for _ in range(120):
        page.keyboard.press(key)
        seen.append(page.evaluate(_FOCUSED))
        if seen[-1] == wanted:
            return
    raise AssertionError(f"no {wanted!r} among {seen}")


def test_filter_select_and_cancel(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    filled = fill(app, client)
    page = visit(f"{url}waiting")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    tab_to(page, "queue")
    page.keyboard.type("mail")
    page.keyboard.press("Enter")
    expect_ids(page, [filled.waiting[f"mail {number}"] for number in range(4)])
    tab_to(page, f"Select {filled.waiting['mail 1']}")
    page.keyboard.press("Space")
    tab_to(page, "Cancel …", key="Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 task")
    tab_to(page, "Cancel for good")
    page.keyboard.press("Enter")
    expect(said(page)).to_have_text("1 task cancelled.")
    assert app.delayq.get(filled.waiting["mail 1"]) is None


def test_all_that_match_by_the_arrow_keys(visit: Visits, url: str, app: Celery) -> None:
    add_orders(app, 2)
    page = visit(f"{url}waiting")
    tab_to(page, "scope")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="all that match")).to_be_checked()
    tab_to(page, "Run now …")
    page.keyboard.press("Space")
    expect(page.get_by_role("heading", level=1)).to_have_text("Run 2 tasks now")
    tab_to(page, "Run now")
    page.keyboard.press("Space")
    expect(page.locator("#progress")).to_contain_text("2 tasks sent to their queues.")


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["", "waiting", "dead", "periodic", "workers"])
def test_whatever_has_the_focus_shows_it(
    visit: Visits, url: str, app: Celery, client: redis.Redis, scheme: Scheme, path: str
) -> None:
    fill(app, client)
    page = visit(f"{url}{path}", scheme=scheme)
    reached = 0
    while True:
        page.keyboard.press("Tab")
        outline = page.evaluate(
            "() => document.activeElement === document.body ? null : getComputedStyle(document.activeElement).outline"
        )
        if outline is None or reached > 60:
            break
        assert "2px" in outline, page.evaluate("document.activeElement.outerHTML")
        reached += 1
    assert reached > 8
