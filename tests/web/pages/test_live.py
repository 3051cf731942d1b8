"""Open pages keep themselves up to date, and leave alone what the operator is doing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from celery import Celery
from playwright.sync_api import Page, Request, Response, expect

from celery_delayq import DeadLetters
from tests.web.filling import add_orders, fill
from tests.web.pages.lists import expect_ids, press, rows, said, select, shown
from tests.web.visit import Visits


def is_live(request: Request) -> bool:
    return "x-delayq-live" in request.headers


def next_answer(page: Page, do: Callable[[], object] = lambda: None) -> Response:
    """Do something, and wait until the page has been told something new."""
    with page.expect_response(lambda response: is_live(response.request)) as found:
        do()
    return found.value


def test_what_the_operator_does_stays(visit: Visits, url: str, app: Celery) -> None:
    """A task appears and one disappears, while boxes are checked, and something is focused, selected and scrolled."""
    ids = add_orders(app, 40)
    page = visit(f"{url}waiting", size=(880, 500))
    select(page, ids[20], ids[21])
    box = page.get_by_role("checkbox", name=f"Select {ids[22]}")
    box.focus()
    table = page.locator("#tasks .scroll")
    table.evaluate("each => { each.scrollLeft = 60; }")
    page.evaluate("scrollTo(0, 700)")
    place = page.evaluate("document.scrollingElement.scrollTop")
    assert place == 700
    left = rows(page).nth(30).locator("td:nth-child(3)").inner_text()
    new = app.tasks["shop.orders.ship"].apply_async((1,), countdown=86400).id
    app.delayq.cancel(ids[39])
    expect(page.get_by_role("link", name=new)).to_be_attached()
    expect(page.get_by_role("link", name=ids[39])).not_to_be_attached()
    expect(rows(page).nth(30).locator("td:nth-child(3)")).not_to_have_text(left)
    expect(rows(page).get_by_role("checkbox", checked=True)).to_have_count(2)
    expect(page.get_by_role("checkbox", name=f"Select {ids[21]}")).to_be_checked()
    expect(box).to_be_focused()
    assert table.evaluate("each => each.scrollLeft") == 60
    assert page.evaluate("document.scrollingElement.scrollTop") == place

    page.get_by_role("region", name="Waiting tasks").focus()
    app.delayq.cancel(ids[38])
    expect(page.get_by_role("link", name=ids[38])).not_to_be_attached()
    expect(page.get_by_role("region", name="Waiting tasks")).to_be_focused()

    press(page, "Cancel …", "Cancel for good")
    expect(said(page)).to_have_text("2 tasks cancelled.")
    assert app.delayq.get(ids[20:22]) == dict.fromkeys(ids[20:22])


@pytest.mark.thorough
def test_all_stay_selected(visit: Visits, url: str, app: Celery) -> None:
    ids = add_orders(app, 3)
    page = visit(f"{url}waiting")
    every = page.get_by_role("checkbox", name="Select all on this page")
    every.check()
    app.delayq.cancel(ids[2])
    expect_ids(page, ids[:2])
    expect(every).to_be_checked()
    app.tasks["shop.orders.ship"].apply_async((1,), countdown=86400)
    expect(rows(page)).to_have_count(3)
    expect(every).not_to_be_checked()
    expect(rows(page).get_by_role("checkbox", checked=True)).to_have_count(2)


@pytest.mark.thorough
def test_selected_text_stays_until_it_is_not_selected_any_more(
    visit: Visits, url: str, app: Celery, client: redis.Redis
) -> None:
    fill(app, client)
    page = visit(f"{url}dead?queue=celery")
    page.locator("#letters td.id a").first.evaluate(
        "link => getSelection().setBaseAndExtent(document.querySelector('h1'), 0, link, 1)"
    )
    selected = page.evaluate("String(getSelection())")
    letters = DeadLetters(client, "celery")
    letters.purge(next(iter(letters)))
    assert next_answer(page).status == 200
    assert next_answer(page).status == 200
    assert page.evaluate("String(getSelection())") == selected
    expect(rows(page)).to_have_count(5)
    page.evaluate("getSelection().removeAllRanges()")
    expect(rows(page)).to_have_count(4)
    assert next_answer(page).status == 304


@pytest.mark.thorough
def test_open_details_stay_open(visit: Visits, url: str, app: Celery) -> None:
    add_orders(app, 3, apart_s=600)
    page = visit(url)
    summary = page.locator("#due-table > summary")
    summary.focus()
    summary.press("Enter")
    expect(page.locator("#due-table tbody tr")).to_have_count(3)
    app.tasks["shop.orders.ship"].apply_async((1,), countdown=2700)
    expect(page.locator("#due-table tbody tr")).to_have_count(4)
    expect(page.locator("#due-table")).to_have_attribute("open", "")
    expect(summary).to_be_focused()


@pytest.mark.thorough
def test_a_hidden_page_asks_nothing(visit: Visits, url: str, app: Celery) -> None:
    page = visit(f"{url}waiting")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if is_live(request) else None)
    other = visit(f"{url}waiting")
    page.evaluate(HIDDEN, True)
    add_orders(app, 2)
    expect_ids(other, shown(visit(f"{url}waiting")))
    next_answer(other)
    next_answer(other)
    assert asked == []
    with page.expect_response(lambda response: is_live(response.request)):
        page.evaluate(HIDDEN, False)
    expect(rows(page)).to_have_count(2)


#: Hides and shows a page as far as it can know: a browser without a window never does.
HIDDEN = """hidden => {
    Object.defineProperty(document, "visibilityState", {value: hidden ? "hidden" : "visible", configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.mark.thorough
def test_updates_can_be_paused(visit: Visits, url: str, app: Celery) -> None:
    page = visit(f"{url}waiting")
    other = visit(f"{url}waiting")
    asked: list[str] = []
    press(page, "Pause updates")
    page.on("request", lambda request: asked.append(request.url) if is_live(request) else None)
    add_orders(app, 2)
    expect(rows(other)).to_have_count(2)
    next_answer(other)
    next_answer(other)
    assert asked == []
    press(page, "Resume updates")
    expect(rows(page)).to_have_count(2)
    expect(page.get_by_role("button", name="Pause updates")).to_be_visible()


def test_what_is_done_in_one_tab_shows_in_the_other(visit: Visits, url: str, app: Celery) -> None:
    ids = add_orders(app, 3)
    page = visit(f"{url}waiting")
    other = page.context.new_page()
    other.goto(f"{url}waiting?queue=celery")
    select(other, ids[1])
    press(other, "Cancel …", "Cancel for good")
    expect(said(other)).to_have_text("1 task cancelled.")
    expect_ids(page, [ids[0], ids[2]])


@pytest.mark.thorough
def test_a_task_page_says_when_its_task_is_gone(visit: Visits, url: str, app: Celery) -> None:
    (task_id,) = add_orders(app, 1)
    page = visit(f"{url}task?id={task_id}")
    visit.watch(page).expect("status of 404")
    app.delayq.run_now(task_id)
    expect(page.locator("#notice")).to_contain_text("This task is not waiting")
    expect(page.locator("#task")).to_contain_text(task_id)


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["periodic", "workers"])
def test_pages_that_do_not_change_are_not_sent_again(visit: Visits, url: str, app: Celery, path: str) -> None:
    page = visit(f"{url}{path}")
    assert next_answer(page).status == 200
    assert next_answer(page).status == 304
