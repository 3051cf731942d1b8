"""Everything that matters works without JavaScript."""

from __future__ import annotations

import redis
from celery import Celery
from playwright.sync_api import expect

from tests.web.filling import add_orders, fill
from tests.web.pages.lists import expect_ids, press, rows, said, select, shown
from tests.web.visit import Visits


def test_tasks_are_filtered_and_changed(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    fill(app, client)
    page = visit(f"{url}waiting", scripts=False)
    for name in ("Show my time zone", "Pause updates"):
        expect(page.get_by_role("button", name=name)).to_be_hidden()
    expect(page.get_by_role("checkbox", name="Select all on this page")).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel …")).to_be_enabled()
    page.get_by_label("Queue", exact=True).fill("mail")
    press(page, "Filter")
    expect(rows(page)).to_have_count(4)
    ids = shown(page)
    select(page, ids[0], ids[1])
    press(page, "Cancel …", "Cancel for good")
    expect(said(page)).to_have_text("2 tasks cancelled.")
    expect_ids(page, ids[2:])
    select(page, ids[2])
    press(page, "Reschedule …")
    expect(page.get_by_label("Or pick a time")).to_be_hidden()
    page.get_by_label("New due time").fill("3d")
    press(page, "Reschedule")
    expect(said(page)).to_have_text("1 task rescheduled.")
    expect_ids(page, [ids[3], ids[2]])
    page.get_by_role("link", name=ids[3]).click()
    press(page, "Run now …", "Run now")
    expect(said(page)).to_have_text("1 task sent to its queue.")
    page.get_by_role("link", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh")


def test_all_that_match_are_changed_step_by_step(visit: Visits, url: str, app: Celery) -> None:
    add_orders(app, 2100, apart_s=1)
    page = visit(f"{url}waiting?queue=celery", scripts=False)
    page.get_by_role("radio", name="all that match").check()
    press(page, "Cancel …", "Cancel for good")
    progress = page.locator("#progress")
    expect(progress).to_contain_text("1,000 tasks cancelled.")
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "1000")
    press(page, "Continue")
    expect(progress).to_contain_text("2,000 tasks cancelled.")
    assert len(list(app.delayq.iter_scheduled())) == 100
    press(page, "Continue")
    expect(progress).to_contain_text("2,100 tasks cancelled.")
    expect(progress).to_contain_text("All done.")
    page.get_by_role("link", name="Back to the list").click()
    expect(page.get_by_text("No waiting tasks match.")).to_be_visible()


def test_dead_letters(visit: Visits, url: str, app: Celery, client: redis.Redis) -> None:
    filled = fill(app, client)
    page = visit(f"{url}dead", scripts=False)
    select(page, filled.dead["delivery-limit"])
    press(page, "Requeue …", "Requeue")
    expect(said(page)).to_have_text("1 message requeued.")
    page.get_by_role("radio", name="all of this queue").check()
    press(page, "Delete …", "Delete for good")
    expect(page.locator("#progress")).to_contain_text("4 dead letters deleted.")


def test_periodic_tasks(visit: Visits, url: str, app: Celery) -> None:
    page = visit(f"{url}periodic", scripts=False)
    page.get_by_text("Add a periodic task").click()
    for label, value in (("Name", "a/b?c"), ("Task", "shop.carts.tidy"), ("Schedule", "2h")):
        page.get_by_label(label, exact=label != "Schedule").fill(value)
    press(page, "Add …")
    expect(page.locator("#preview li")).to_have_count(5)
    assert list(app.delayq.schedule) == []
    press(page, "Add")
    expect(said(page)).to_have_text("a/b?c added.")
    page.get_by_role("link", name="a/b?c").click()
    press(page, "Pause")
    expect(page.locator("dl")).to_contain_text("paused")
    page.get_by_text("Edit", exact=True).click()
    page.get_by_label("Schedule").fill("3h")
    press(page, "Save …", "Save")
    expect(page.locator("dl")).to_contain_text("every 3h")
    press(page, "Resume", "Remove …", "Remove for good")
    expect(said(page)).to_have_text("a/b?c removed.")
    assert list(app.delayq.schedule) == []


def test_the_chart_leads_on(visit: Visits, url: str, app: Celery) -> None:
    add_orders(app, 1, first_due_s=1800)
    page = visit(url, scripts=False)
    page.locator("#due-region .bar").click()
    expect(rows(page)).to_have_count(1)
