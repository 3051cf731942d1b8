"""Waiting tasks, in the browser: filter, select, cancel, reschedule, and change all that match."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery
from playwright.sync_api import Page, expect

from tests.web.filling import Filled, add_orders, fill
from tests.web.pages.lists import Held, expect_ids, press, rows, said, select, shown
from tests.web.visit import Visits


@pytest.fixture
def filled(app: Celery, client: redis.Redis) -> Filled:
    return fill(app, client)


def test_each_field_of_the_filter(visit: Visits, url: str, app: Celery, filled: Filled) -> None:
    page = visit(f"{url}waiting")
    expect_ids(page, [task.id for task in app.delayq.iter_scheduled()])
    (soon, in_an_hour) = filled.waiting["soon"], filled.waiting["in an hour"]
    mails = [filled.waiting[f"mail {number}"] for number in range(4)]
    tomorrow = (datetime.now(timezone.utc) + timedelta(days=1, minutes=-5)).strftime("%Y-%m-%d %H:%M")
    for fields, ids in (
        ({"Queue": "mail"}, mails),
        ({"Task contains": "orders.remind", "Due before": "61m"}, None),
        ({"Due from": tomorrow, "Due before": "300d"}, [filled.waiting["tomorrow"], mails[3]]),
        ({"Due before": "2m"}, [filled.overdue, soon]),
        ({"Text in arguments": "'sms'"}, [in_an_hour]),
        ({"Queue": "mail", "Due from": "+90m", "Due before": "+6h"}, mails[1:3]),
    ):
        page.get_by_role("link", name="Clear").or_(page.get_by_role("link", name="Waiting")).first.click()
        for label, value in fields.items():
            page.get_by_label(label, exact=True).fill(value)
        press(page, "Filter")
        for label, value in fields.items():
            expect(page.get_by_label(label, exact=True)).to_have_value(value)
        if ids is not None:
            expect_ids(page, ids)
        else:
            expect(rows(page).locator("td:nth-child(4)")).to_have_text(["shop.orders.remind"] * 4)


def test_a_filter_that_cannot_be_read(visit: Visits, url: str, filled: Filled) -> None:
    page = visit(f"{url}waiting")
    visit.watch(page).expect("status of 400")
    page.get_by_label("Due from").fill("whenever")
    press(page, "Filter")
    expect(page.get_by_role("alert")).to_contain_text("Cannot read 'whenever' as a time")
    expect(page.get_by_label("Due from")).to_have_value("whenever")


def test_what_is_selected_is_changed_and_the_filter_stays(visit: Visits, url: str, app: Celery, filled: Filled) -> None:
    page = visit(f"{url}waiting?task=shop.orders.ship&due_before=%2B2h")
    ids = shown(page)
    assert len(ids) == 7

    def filter_is_kept() -> None:
        expect(page.get_by_label("Task contains")).to_have_value("shop.orders.ship")
        expect(page.get_by_label("Due before")).to_have_value("+2h")

    select(page, *ids[:2])
    press(page, "Cancel …")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 2 tasks")
    expect(page.locator(".names")).to_contain_text(ids[1])
    page.get_by_role("link", name="Back").click()
    filter_is_kept()
    select(page, *ids[:2])
    press(page, "Cancel …", "Cancel for good")
    expect(said(page)).to_have_text("2 tasks cancelled.")
    filter_is_kept()
    expect_ids(page, ids[2:])
    assert app.delayq.get(ids[:2]) == dict.fromkeys(ids[:2])

    select(page, ids[2])
    press(page, "Run now …", "Run now")
    expect(said(page)).to_have_text("1 task sent to its queue.")
    filter_is_kept()
    expect_ids(page, ids[3:])

    select(page, ids[3])
    press(page, "Reschedule …")
    page.get_by_label("New due time").fill("90m")
    press(page, "Reschedule")
    expect(said(page)).to_have_text("1 task rescheduled.")
    filter_is_kept()
    expect_ids(page, [*ids[4:], ids[3]])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("written", "due"),
    [
        ("30m", lambda now: now + timedelta(minutes=30)),
        ("2031-02-03 04:05", lambda now: datetime(2031, 2, 3, 4, 5, tzinfo=timezone.utc)),
        ("2031-02-03T04:05:06+02:00", lambda now: datetime(2031, 2, 3, 2, 5, 6, tzinfo=timezone.utc)),
    ],
)
def test_a_new_due_time(visit: Visits, url: str, app: Celery, written: str, due: object) -> None:
    (task_id,) = add_orders(app, 1)
    page = visit(f"{url}task?id={task_id}")
    press(page, "Reschedule …")
    expect(page.get_by_label("New due time")).to_be_focused()
    visit.watch(page).expect("status of 400")
    page.get_by_label("New due time").fill("nonsense")
    press(page, "Reschedule")
    expect(page.get_by_role("alert")).to_contain_text("Cannot read 'nonsense' as a time")
    expect(page.get_by_label("New due time")).to_have_value("nonsense")
    page.get_by_label("New due time").fill(written)
    press(page, "Reschedule")
    expect(said(page)).to_have_text("1 task rescheduled.")
    task = app.delayq.get(task_id)
    assert task is not None
    assert abs(task.due - due(datetime.now(timezone.utc))) < timedelta(seconds=30)  # type: ignore[operator]


def test_all_tasks_on_the_page_are_selected(visit: Visits, url: str, app: Celery) -> None:
    ids = add_orders(app, 60)
    page = visit(f"{url}waiting")
    every = page.get_by_role("checkbox", name="Select all on this page")
    every.check()
    expect(rows(page).get_by_role("checkbox", checked=True)).to_have_count(50)
    rows(page).get_by_role("checkbox").nth(7).uncheck()
    expect(every).not_to_be_checked()
    press(page, "Cancel …", "Cancel for good")
    expect(said(page)).to_have_text("49 tasks cancelled.")
    expect_ids(page, [ids[7], *ids[50:]])
    page.get_by_text("What was done").click()
    expect(page.locator(".results li")).to_have_count(49)


@pytest.mark.thorough
def test_there_are_several_pages(visit: Visits, url: str, app: Celery) -> None:
    ids = add_orders(app, 70)
    page = visit(f"{url}waiting?queue=celery")
    page.get_by_role("link", name="Next page").click()
    expect_ids(page, ids[50:])
    page.get_by_role("link", name="First page").click()
    expect_ids(page, ids[:50])
    expect(page.get_by_label("Queue", exact=True)).to_have_value("celery")


def test_actions_are_off_while_nothing_is_selected(visit: Visits, url: str, app: Celery, filled: Filled) -> None:
    page = visit(f"{url}waiting")
    actions = page.locator(".toolbar button[name=action]")

    def expect_on(is_on: bool) -> None:
        for number in range(3):
            expect(actions.nth(number)).to_be_enabled(enabled=is_on)

    expect_on(False)
    select(page, filled.waiting["soon"])
    expect_on(True)
    app.delayq.cancel(filled.waiting["soon"])  # an update takes it away
    expect_on(False)
    page.get_by_role("radio", name="all that match").check()
    expect_on(True)
    page.get_by_role("radio", name="selected ones").check()
    expect_on(False)
    page.get_by_role("checkbox", name="Select all on this page").check()
    expect_on(True)
    press(page, "Cancel …")
    page.go_back()
    expect(rows(page).get_by_role("checkbox", checked=True).first).to_be_visible()
    expect_on(True)


def test_a_time_is_picked_in_the_zone_that_is_shown(visit: Visits, url: str, app: Celery) -> None:
    (task_id,) = add_orders(app, 1)
    page = visit(f"{url}task?id={task_id}")
    press(page, "Reschedule …")
    field, picker = page.get_by_label("New due time"), page.get_by_label("Or pick a time")
    expect(page.locator("[data-picks]")).to_contain_text("in UTC")
    picker.fill("2031-02-03T04:05")
    expect(field).to_have_value("2031-02-03 04:05:00")
    press(page, "Show my time zone")
    expect(page.locator("[data-picks]")).to_contain_text("Asia/")
    expect(picker).to_have_value("2031-02-03T09:35")  # half past five hours ahead
    field.fill("2h")
    expect(picker).to_have_value("")
    picker.fill("2031-02-03T10:00:30")
    expect(field).to_have_value("2031-02-03 04:30:30")
    press(page, "Reschedule")
    expect(said(page)).to_have_text("1 task rescheduled.")
    task = app.delayq.get(task_id)
    assert task is not None
    assert task.due == datetime(2031, 2, 3, 4, 30, 30, tzinfo=timezone.utc)


def test_names_of_tasks_are_proposed(visit: Visits, url: str, app: Celery) -> None:
    for path in ("waiting", "dead"):
        page = visit(f"{url}{path}")
        offered = page.locator(f"#{page.get_by_label('Task contains').get_attribute('list')} option")
        assert "shop.orders.ship" in [each.get_attribute("value") for each in offered.all()]


def start_on_all(page: Page, button: str) -> None:
    page.get_by_role("radio", name="all that match").check()
    press(page, button)


def test_all_that_match_are_changed_chunk_after_chunk(visit: Visits, url: str, app: Celery) -> None:
    add_orders(app, 2500, apart_s=1)
    other = app.tasks["shop.orders.ship"].apply_async((1,), countdown=100).id
    page = visit(f"{url}waiting?task=shop.orders.remind")
    start_on_all(page, "Cancel …")
    # How many were counted in the time for that.
    expect(page.get_by_role("heading", level=1)).to_have_text(
        re.compile(r"^Cancel (2,500 tasks|[12],\d00 tasks or more)$")
    )
    expect(page.locator(".names")).to_have_text("Task contains: shop.orders.remind")
    bar = page.get_by_role("progressbar")
    with Held(page, "waiting", after=1) as held:
        press(page, "Cancel for good")
        expect(page.locator("#progress")).to_contain_text("1,000 tasks cancelled.")
        expect(bar).to_have_attribute("value", "1001")
        expect(bar).to_have_attribute("max", "2501")
        held.go_on()
    expect(page.locator("#progress")).to_contain_text("2,500 tasks cancelled.")
    expect(page.locator("#progress")).to_contain_text("All done.")
    page.get_by_role("link", name="Back to the list").click()
    expect(page.get_by_label("Task contains")).to_have_value("shop.orders.remind")
    expect(page.get_by_text("No waiting tasks match.")).to_be_visible()
    assert [task.id for task in app.delayq.iter_scheduled()] == [other]


@pytest.mark.thorough
def test_a_change_of_many_can_be_stopped(visit: Visits, url: str, app: Celery) -> None:
    ids = add_orders(app, 2500, apart_s=1)
    page = visit(f"{url}waiting")
    start_on_all(page, "Reschedule …")
    page.get_by_label("New due time").fill("30d")
    with Held(page, "waiting", after=1):
        press(page, "Reschedule")
        expect(page.locator("#progress")).to_contain_text("Looked at 1,000 of 2,500.")
        page.get_by_role("link", name="Stop").click()
        expect(page).to_have_url(f"{url}waiting")
    expect_ids(page, ids[1000:1050])
    assert len(list(app.delayq.iter_scheduled(due_after=datetime.now(timezone.utc) + timedelta(days=20)))) == 1000


def test_a_task_that_is_delivered_while_the_question_is_open(
    visit: Visits, url: str, app: Celery, filled: Filled
) -> None:
    page = visit(f"{url}waiting?queue=mail")
    ids = shown(page)
    select(page, *ids[:2])
    press(page, "Cancel …")
    app.delayq.run_now(ids[0])
    press(page, "Cancel for good")
    expect(said(page)).to_have_text("1 task cancelled. 1 was no longer waiting.")
    expect(page.locator(".results li").filter(has_text=ids[0])).to_contain_text("no longer waiting")
    expect(page.locator(".results li").filter(has_text=ids[1])).to_contain_text("done")
    expect_ids(page, ids[2:])


def test_a_task_that_is_delivered_before_the_question(visit: Visits, url: str, app: Celery, filled: Filled) -> None:
    page = visit(f"{url}task?id={filled.waiting['soon']}")
    app.delayq.run_now(filled.waiting["soon"])
    press(page, "Reschedule …")
    expect(page.locator("main")).to_contain_text("1 is no longer waiting.")
    expect(page.get_by_role("button", name="Reschedule")).to_have_count(0)
