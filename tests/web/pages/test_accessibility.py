"""No page breaks a rule of WCAG 2.1 A and AA, and none is wider than the window."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from tests.web.axe import Violations, axe
from tests.web.filling import fill
from tests.web.hostile import fill_hostile
from tests.web.pages.views import open_details, views
from tests.web.visit import DESKTOP, PHONE, Scheme, Visits

#: Widths of windows, in CSS pixels: of phones, of tablets, where the layout changes, and of desktops.
WIDTHS = (360, 412, 560, 561, 760, 860, 861, 1024, 1280, 1920)

#: How much wider a page is than its window, when it is laid out.
_TOO_WIDE = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
    done(document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth);
})))"""


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(PHONE, "dark", id="phone"),
        pytest.param(DESKTOP, "light", id="desktop", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("path", ["", "waiting", "waiting?state=ready", "dead"])
def test_pages_break_no_rule(
    visit: Visits, url: str, app: Celery, client: redis.Redis, path: str, size: tuple[int, int], scheme: Scheme
) -> None:
    fill(app, client)
    page = visit(f"{url}{path}", size=size, scheme=scheme)
    open_details(page)
    assert axe(page) == []
    assert page.evaluate(_TOO_WIDE) <= 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "scheme", "locale"),
    [
        *((size, scheme, "en-GB") for size in (PHONE, DESKTOP) for scheme in ("light", "dark")),
        (PHONE, "light", "zh-CN"),
    ],
)
def test_no_view_breaks_a_rule(
    visit: Visits, url: str, app: Celery, client: redis.Redis, size: tuple[int, int], scheme: Scheme, locale: str
) -> None:
    page = visit(url, size=size, scheme=scheme, locale=locale)
    found = {}
    for view in views(page, visit.watch(page), url, app, client):
        open_details(page)
        if violations := axe(page):
            found[view] = violations
    assert found == dict[str, Violations]()


@pytest.mark.thorough
@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_no_view_is_wider_than_the_window(
    visit: Visits, url: str, app: Celery, client: redis.Redis, locale: str
) -> None:
    page = visit(url, locale=locale)
    found = []
    for view in views(page, visit.watch(page), url, app, client):
        open_details(page)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            if (over := page.evaluate(_TOO_WIDE)) > 0:
                found.append((view, width, over))
        page.set_viewport_size({"width": 1280, "height": 800})
    assert found == []


@pytest.mark.thorough
def test_no_hostile_text_makes_a_page_wider_or_breaks_a_rule(
    visit: Visits, url: str, app: Celery, client: redis.Redis, size: tuple[int, int], scheme: Scheme
) -> None:
    fill_hostile(app, client, large=False)
    page = visit(url, size=size, scheme=scheme)
    for path in (
        "",
        "waiting",
        "waiting?state=ready",
        "waiting?queue=celery",
        "dead?queue=celery",
        "periodic",
        "workers",
    ):
        page.goto(f"{url}{path}")
        open_details(page)
        assert (path, page.evaluate(_TOO_WIDE)) == (path, 0)
        assert axe(page) == []
