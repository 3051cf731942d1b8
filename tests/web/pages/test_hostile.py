"""What somebody put into the broker to harm who looks at it does nothing in the browser.

Each page is under watch, see `Watch`: dialogs, violations of the policy and foreign requests fail the test.
"""

from __future__ import annotations

from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest
import redis
from celery import Celery
from playwright.sync_api import Page, expect

from celery_delayq import DelayedQueue
from tests.web.hostile import SURROGATE, TEXTS, fill_hostile
from tests.web.pages.lists import press, rows
from tests.web.visit import Visits

#: All that the templates are made of.
ELEMENTS = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "header", "svg", "circle", "path", "nav", "main"),
    *(
        "h1",
        "h2",
        "p",
        "div",
        "span",
        "footer",
        "section",
        "dl",
        "dt",
        "dd",
        "ol",
        "ul",
        "li",
        "code",
        "pre",
        "br",
        "wbr",
        "em",
    ),
    *("strong", "small", "time", "table", "thead", "tbody", "tr", "th", "td", "form", "fieldset", "legend", "label"),
    *("input", "select", "option", "datalist", "button", "details", "summary", "progress", "figure", "figcaption"),
    *("line", "text", "rect", "textarea"),
}

#: All attributes that the templates use.
ATTRIBUTES = {
    *("id", "class", "lang", "href", "rel", "type", "src", "defer", "charset", "name", "content", "title", "hidden"),
    *("viewBox", "width", "height", "cx", "cy", "r", "d", "x", "y", "x1", "x2", "y1", "y2", "focusable", "translate"),
    *("tabindex", "role", "scope", "colspan", "method", "action", "value", "list", "placeholder", "autocomplete"),
    *(
        "rows",
        "step",
        "inputmode",
        "checked",
        "selected",
        "open",
        "required",
        "autofocus",
        "datetime",
        "max",
        "spellcheck",
        "disabled",
    ),
}


def expect_harmless(page: Page) -> None:
    """Check that no text of others became an element, an attribute or a link."""
    found = page.evaluate(
        """([elements, attributes]) => [...document.querySelectorAll("*")].flatMap(each => [
            ...(elements.includes(each.localName) ? [] : [each.localName]),
            ...[...each.attributes].map(one => one.name)
                .filter(name => !attributes.includes(name) && !/^(aria|data)-[a-z]+$/.test(name)),
            ...(each.localName === "script" && each.textContent ? ["inline script"] : []),
            ...(each.href && !String(each.href.baseVal ?? each.href).match(/^https?:/) && !each.href.baseVal
                ? [each.href] : []),
            ...(each.href?.baseVal && !/^(\\.\\/|waiting)\\?/.test(each.href.baseVal) ? [each.href.baseVal] : []),
        ])""",
        [sorted(ELEMENTS), sorted(ATTRIBUTES)],
    )
    assert found == [], page.url


def links(page: Page, selector: str) -> list[str]:
    return page.locator(selector).evaluate_all("links => links.map(link => link.href)")


@pytest.fixture
def page(visit: Visits, url: str, app: Celery, client: redis.Redis) -> Page:
    fill_hostile(app, client, large=False)
    return visit(url)


@pytest.mark.parametrize("path", ["", "waiting", "dead?queue=celery", "periodic", "workers"])
def test_lists_are_harmless(page: Page, url: str, path: str) -> None:
    page.goto(f"{url}{path}")
    expect_harmless(page)
    press(page, "Show my time zone")
    expect_harmless(page)


@pytest.mark.thorough
def test_each_task_letter_and_entry(visit: Visits, page: Page, url: str, app: Celery) -> None:
    """By their links, as somebody follows them. Two entries say that they have another id than they have."""
    visit.watch(page).expect("status of 404")
    gone = 0
    for path, selector in (
        ("waiting?queue=celery", "td.id a"),
        ("dead?queue=celery", "td.id a"),
        ("periodic", "tbody th a"),
    ):
        page.goto(f"{url}{path}")
        urls = links(page, selector)
        assert len(urls) > 20
        for each in urls:
            response = page.goto(each)
            assert response is not None
            is_gone = response.status == 404 and app.delayq.get(parse_qs(urlsplit(each).query)["id"][0]) is None
            assert response.status == 200 or is_gone, each
            gone += is_gone
            expect_harmless(page)
    assert gone == 2


@pytest.mark.thorough
def test_queues(page: Page, url: str) -> None:
    page.goto(url)
    urls = links(page, "#queues tbody th a")
    assert len(urls) > 15
    for each in urls:
        page.goto(each)
        expect_harmless(page)
        assert rows(page).count() >= 1, each


@pytest.mark.parametrize("text", [*TEXTS.values(), SURROGATE], ids=[*TEXTS, "surrogate"])
@pytest.mark.thorough
def test_what_the_url_says_is_harmless(visit: Visits, page: Page, url: str, text: str) -> None:
    text = text[:1000].encode("utf-8", "replace").decode()
    visit.watch(page).expect("status of 40")
    for query in ({"queue": text, "task": text, "text": text}, {"due_after": text}, {"cursor": text}):
        page.goto(f"{url}waiting?{urlencode(query)}")
        expect_harmless(page)
    for path in ("task?id=", "letter?queue=celery&letter=", "dead?queue=", "entry?name=", "?from=", "?lang="):
        page.goto(f"{url}{path}{quote(text, safe='')}")
        expect_harmless(page)


@pytest.mark.thorough
def test_actions_on_hostile_tasks(page: Page, url: str, app: Celery) -> None:
    """All that can be selected is cancelled: the ids survive the form. Two have another id than they say."""
    before = len(list(app.delayq.iter_scheduled(queue="celery")))
    page.goto(f"{url}waiting?queue=celery")
    page.get_by_role("checkbox", name="Select all on this page").check()
    number = rows(page).get_by_role("checkbox", checked=True).count()
    assert number > 20
    press(page, "Cancel …")
    expect_harmless(page)
    press(page, "Cancel for good")
    expect(page.get_by_role("status")).to_have_text(f"{number - 2} tasks cancelled. 2 were no longer waiting.")
    expect_harmless(page)
    assert len(list(app.delayq.iter_scheduled(queue="celery"))) == before - number + 2


@pytest.mark.thorough
def test_ready_tasks(page: Page, url: str, client: redis.Redis) -> None:
    """They are shown, and all that can be selected is cancelled, except for one whose id is a list."""
    client.lpush("celery", *(entry.payload for entry in DelayedQueue(client, "celery").peek(100)))
    page.goto(f"{url}waiting?state=ready")
    expect_harmless(page)
    for each in links(page, "td.id a")[:5]:
        page.goto(each)
        expect_harmless(page)
    page.goto(f"{url}waiting?state=ready")
    page.get_by_role("checkbox", name="Select all on this page").check()
    number = rows(page).get_by_role("checkbox", checked=True).count()
    assert number > 20
    press(page, "Cancel …")
    expect_harmless(page)
    press(page, "Cancel for good")
    expect(page.get_by_role("status")).to_have_text(f"{number - 1} tasks cancelled. 1 was no longer waiting.")
    expect_harmless(page)
