"""Dead letters, in the browser."""

from __future__ import annotations

import pytest
import redis
from celery import Celery
from playwright.sync_api import expect

from celery_delayq import DeadLetters
from celery_delayq.queue import dead_letter
from tests.state import bury
from tests.web.filling import Filled, fill, message_of
from tests.web.pages.lists import expect_ids, press, rows, said, select, shown
from tests.web.visit import Visits


@pytest.fixture
def filled(app: Celery, client: redis.Redis) -> Filled:
    return fill(app, client)


@pytest.fixture
def letters(client: redis.Redis, filled: Filled) -> DeadLetters:
    return DeadLetters(client, "celery")


def test_some_are_requeued_and_deleted(
    visit: Visits, url: str, app: Celery, filled: Filled, letters: DeadLetters
) -> None:
    page = visit(f"{url}dead")
    expect_ids(page, filled.dead.values())
    select(page, filled.dead["delivery-limit"], filled.dead["not-an-entry"])
    press(page, "Requeue …")
    expect(page.get_by_role("heading", level=1)).to_have_text("Requeue 2 dead letters")
    expect(page.locator("main")).to_contain_text("1 is not a message and cannot be requeued.")
    press(page, "Requeue")
    expect(said(page)).to_contain_text("1 message requeued.")
    expect(page.locator(".results li")).to_have_count(2)
    expect_ids(page, [one for reason, one in filled.dead.items() if reason != "delivery-limit"])
    assert {queue.queue: queue.ready for queue in app.delayq.counts().queues}["celery"] == 1
    select(page, filled.dead["not-an-entry"])
    press(page, "Delete …")
    expect(page.locator("main")).to_contain_text("This cannot be undone.")
    press(page, "Delete for good")
    expect(said(page)).to_have_text("1 dead letter deleted.")
    assert len(letters) == 3


def test_one_that_is_requeued_elsewhere_meanwhile(
    visit: Visits, url: str, filled: Filled, letters: DeadLetters
) -> None:
    page = visit(f"{url}dead")
    select(page, filled.dead["delivery-limit"], filled.dead["invalid-task"])
    press(page, "Requeue …")
    letter = letters.find(filled.dead["delivery-limit"])
    assert letter is not None
    assert letters.requeue(letter)
    press(page, "Requeue")
    expect(said(page)).to_have_text("1 message requeued. 1 was gone, or is not a message.")
    expect(page.locator(".results li").filter(has_text=letter.id)).to_contain_text("gone")
    assert len(letters) == 3


def test_one_that_is_gone_before_the_question(visit: Visits, url: str, filled: Filled, letters: DeadLetters) -> None:
    page = visit(f"{url}letter?queue=celery&letter={filled.dead['delivery-limit']}")
    letters.purge()
    press(page, "Requeue …")
    expect(page.locator("main")).to_contain_text("1 is no longer there.")
    expect(page.get_by_role("button", name="Requeue")).to_have_count(0)
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_text("No dead letters. Nothing was given up.")).to_be_visible()


def test_all_of_a_queue(
    visit: Visits, url: str, app: Celery, client: redis.Redis, filled: Filled, letters: DeadLetters
) -> None:
    """First all are requeued that can be, then the rest is deleted."""
    _, message = message_of(app, client, "shop.orders.remind", 1)
    more = [dead_letter.pack(message, reason="delivery-limit") for number in range(1500)]
    bury(client, "celery", *more)
    page = visit(f"{url}dead")
    page.locator("select[name=queue]").select_option("mail")
    press(page, "Show")
    expect(page.get_by_text("No dead letters.")).to_be_visible()
    page.locator("select[name=queue]").select_option("celery")
    press(page, "Show")
    expect(page.get_by_text("1,505 in this queue")).to_be_visible()
    page.get_by_role("link", name="Next page").click()
    page.get_by_role("radio", name="all of this queue").check()
    press(page, "Requeue …")
    expect(page.locator(".names")).to_have_text("All dead letters of queue celery")
    press(page, "Requeue")
    expect(page.locator("#progress")).to_contain_text("1,504 messages requeued.")
    expect(page.locator("#progress")).to_contain_text("All done.")
    page.get_by_role("link", name="Back to the list").click()
    expect_ids(page, [filled.dead["not-an-entry"]])
    page.get_by_role("radio", name="all of this queue").check()
    press(page, "Delete …", "Delete for good")
    expect(page.locator("#progress")).to_contain_text("1 dead letter deleted.")
    page.get_by_role("link", name="Back to the list").click()
    expect(rows(page)).to_have_count(0)
    assert len(letters) == 0


def test_those_that_match(visit: Visits, url: str, filled: Filled, letters: DeadLetters) -> None:
    page = visit(f"{url}dead")
    page.get_by_label("Reason").select_option("failed")
    page.get_by_label("Text in arguments or error").fill("the bank")
    press(page, "Show")
    expect_ids(page, [filled.dead["failed"]])
    page.get_by_role("link", name=filled.dead["failed"]).click()
    expect(page.locator("main")).to_contain_text("bank.charge(order, amount)")
    page.go_back()
    page.get_by_role("radio", name="all that match").check()
    press(page, "Requeue …")
    expect(page.get_by_role("heading", level=1)).to_have_text("Requeue 1 dead letter")
    expect(page.locator(".names")).to_contain_text("text: the bank")
    press(page, "Requeue")
    expect(page.locator("#progress")).to_contain_text("1 message requeued.")
    page.get_by_role("link", name="Back to the list").click()
    expect(page.get_by_text("No dead letters match.")).to_be_visible()
    assert len(letters) == 4


def test_a_letter_in_full(visit: Visits, url: str, filled: Filled, letters: DeadLetters) -> None:
    page = visit(f"{url}dead")
    page.get_by_role("link", name=filled.dead["invalid-task"]).click()
    texts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
    assert "its eta is no ISO 8601 time" in texts["Reason"]
    assert texts["Task"] == texts["task"] == "shop.orders.ship"
    assert texts["eta"] == "the day after"
    assert "1009" in page.locator("pre").inner_text()
    press(page, "Delete …", "Delete for good")
    expect(said(page)).to_have_text("1 dead letter deleted.")
    visit.watch(page).expect("status of 404")
    page.go_back()
    page.go_back()
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("No longer there")
    page.goto(f"{url}dead")
    page.get_by_role("link", name=filled.dead["not-an-entry"]).click()
    expect(page.get_by_role("button", name="Requeue …")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("This is not a message of Celery.")
    assert len(shown(page)) == 0
