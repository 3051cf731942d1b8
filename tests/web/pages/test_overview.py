"""The overview, and the page of a task, in the browser."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import redis
from celery import Celery
from playwright.sync_api import Page, expect

from tests.web.filling import fill
from tests.web.pages.lists import press, said, shown
from tests.web.visit import Visits


def bars(page: Page) -> list[int]:
    """Return how many tasks each bar of the chart of due times says that it has."""
    page.locator("#due-region .chart").wait_for()
    titles = page.locator("#due-region .bar title").all_text_contents()
    return [int(title.partition(" ")[0].replace(",", "")) for title in titles]


def test_from_a_year_to_the_tasks_of_a_minute_and_back(visit: Visits, url: str, app: Celery) -> None:
    far = datetime.now(timezone.utc) + timedelta(days=200)
    remind = app.tasks["shop.orders.remind"]
    wanted = [remind.apply_async((number,), eta=far).id for number in range(3)]
    remind.apply_async((9,), eta=far + timedelta(minutes=20))
    remind.apply_async((9,), eta=far + timedelta(days=100))
    page = visit(url)
    assert bars(page) == []
    expect(page.locator("#due-region")).to_contain_text("5 are due later.")
    page.get_by_role("link", name="1 year").click()
    expect(page.get_by_role("link", name="1 year")).to_have_attribute("aria-current", "true")
    urls = []
    while "waiting" not in page.url:
        urls.append(page.url)
        found = bars(page)
        assert max(found) >= 3, urls
        bar = page.locator("#due-region .bar").nth(found.index(max(found)))
        bar.click()
        expect(page).not_to_have_url(urls[-1])
    assert set(shown(page)) == set(wanted)
    for each in reversed(urls):
        page.go_back()
        expect(page).to_have_url(each)
    assert len(urls) >= 3

    page.go_forward()
    window = page.locator(".window span")
    first = window.inner_text()
    page.get_by_role("link", name="later").click()
    expect(window).not_to_have_text(first)
    page.get_by_role("link", name="earlier").click()
    expect(window).to_have_text(first)


def test_tiles_and_queues(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    filled = fill(app, client)
    page = visit(url)
    tiles = page.locator(".tiles div")
    number = len(filled.waiting) + 1
    app.tasks["shop.orders.ship"].delay(1)
    page.reload()
    expect(tiles).to_have_text([f"Delayed{number}", "Overdue1", "Ready2", "In flight1", "Dead4", "Failed1"])
    page.locator("#queues").get_by_role("link", name="mail").click()
    expect(page.get_by_label("Queue", exact=True)).to_have_value("mail")
    page.go_back()
    page.locator("#queues").get_by_role("link", name="4", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")
    page.go_back()
    page.get_by_role("link", name="72 hours").click()
    expect(page.get_by_role("link", name="72 hours")).to_have_attribute("aria-current", "true")


def test_a_task_in_full(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    filled = fill(app, client)
    task = app.delayq.get(filled.waiting["mail 2"])
    assert task is not None
    page = visit(f"{url}waiting")
    page.get_by_role("link", name=task.id).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("shop.mail.send")
    texts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
    assert set(task.headers) <= set(texts)
    utc = f"{task.due.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    own = task.due.astimezone(timezone(timedelta(hours=5, minutes=30)))  # Asia/Kolkata
    assert utc in texts["Due"]
    assert f"({own:%Y-%m-%d %H:%M:%S} UTC+5:30)" in texts["Due"]
    assert texts["Queue"] == "mail, priority 3"
    assert texts["Id"] == texts["id"] == task.id
    assert "customer2@shop.example" in texts["Keyword arguments"]
    assert '"subject": "Did you forget something?"' in page.locator("pre").inner_text()

    press(page, "Cancel …")
    page.go_back()
    press(page, "Cancel …", "Cancel for good")
    expect(said(page)).to_have_text("1 task cancelled.")
    visit.watch(page).expect("status of 404")
    page.goto(f"{url}task?id={task.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text("No longer waiting")


def test_the_time_zone(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    filled = fill(app, client)
    task = app.delayq.get(filled.waiting["tomorrow"])
    assert task is not None
    page = visit(f"{url}waiting?task=shop.orders.ship&due_after=%2B3h")
    time = page.locator("tbody time").first
    utc = f"{task.due.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    own = f"{task.due.astimezone(timezone(timedelta(hours=5, minutes=30))):%Y-%m-%d %H:%M:%S} UTC+5:30"
    expect(time).to_have_text(utc)
    expect(time).to_have_attribute("title", own)
    press(page, "Show my time zone")
    expect(time).to_have_text(own)
    expect(time).to_have_attribute("title", utc)
    expect(page.get_by_text("Times are in UTC.")).to_be_hidden()
    expect(page.get_by_text("Charts are in UTC.")).to_be_visible()
    page.goto(f"{url}task?id={task.id}")
    expect(page.locator("dd time").first).to_have_text(f"{own} ({utc})")
    press(page, "Show UTC")
    expect(page.get_by_text("Times are in UTC.")).to_be_visible()
    expect(page.locator("dd time").first).to_have_text(f"{utc} ({own})")


def test_viewers_in_utc_see_each_time_once(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    task = app.delayq.get(fill(app, client).waiting["tomorrow"])
    assert task is not None
    page = visit(f"{url}task?id={task.id}", timezone_id="UTC")
    expect(page.locator("dd time").first).to_have_text(f"{task.due.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC")
    expect(page.get_by_role("button", name="Show my time zone")).to_be_hidden()


def test_the_language(visit: Visits, url: str, app: Celery) -> None:
    page = visit(f"{url}waiting?queue=mail")
    page.get_by_role("link", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.locator("input[name=queue]")).to_have_value("mail")
    assert page.url == f"{url}waiting?queue=mail"
    for path in ("", "dead", "periodic", "workers"):
        page.goto(f"{url}{path}")
        expect(page.locator("html")).to_have_attribute("lang", "zh")
    page.get_by_role("link", name="English").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    chinese = visit(url, locale="zh-CN")
    expect(chinese.locator("html")).to_have_attribute("lang", "zh")


def test_the_table_of_queues_fits_a_phone(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    fill(app, client)
    page = visit(url, size=(390, 800))
    row = page.locator("#queues tbody tr").filter(has_text="reports")
    for label in ("Delayed", "Overdue", "Ready", "In flight", "Dead", "Consumers", "Next due"):
        cell = row.locator(f"td[data-label='{label}']")
        box = cell.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390
        assert label in cell.evaluate("each => getComputedStyle(each, '::before').content + each.dataset.label")
    expect(row).to_contain_text("no consumer")
    expect(page.locator("#queues tbody tr").filter(has_text="celery")).not_to_contain_text("no consumer")
