"""What the page sets in motion, and a real worker does."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import redis
from celery import Celery
from playwright.sync_api import expect

from celery_delayq.queue import dead_letter
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.state import bury
from tests.support import wait_until
from tests.web.filling import message_of, shop
from tests.web.pages.lists import press, said, select
from tests.web.shop import QUEUES
from tests.web.visit import Visits
from tests.workers import Worker


@pytest.fixture(scope="module")
def app(broker: PrivateRedis, ledger_url: str) -> Iterator[Celery]:
    """The shop; its broker is emptied once, for there is a worker."""
    with shop(broker, ledger_url) as app:
        yield app


@pytest.fixture(scope="module")
def worker(app: Celery, broker: PrivateRedis, ledger_url: str) -> Iterator[Worker]:
    with Worker(
        "-Q", ",".join(QUEUES), app="tests.web.shop", broker=brokers.url_of(broker), ledger=ledger_url
    ) as worker:
        yield worker


def wait_until_it_ran(worker: Worker, task_id: str) -> None:
    worker.wait_for_log(f"[{task_id}] succeeded")


def test_a_task_runs_now(visit: Visits, url: str, app: Celery, worker: Worker) -> None:
    ship = app.tasks["shop.orders.ship"]
    first, second = (ship.apply_async((number,), countdown=3600).id for number in range(2))
    page = visit(f"{url}waiting?task=shop.orders.ship")
    select(page, first)
    press(page, "Run now …", "Run now")
    wait_until_it_ran(worker, first)
    page.get_by_role("radio", name="all that match").check()
    press(page, "Run now …", "Run now")
    expect(page.locator("#progress")).to_contain_text("1 task sent to its queue.")
    wait_until_it_ran(worker, second)


def test_a_task_that_is_rescheduled_runs_then(visit: Visits, url: str, app: Celery, worker: Worker) -> None:
    task_id = app.tasks["shop.orders.ship"].apply_async((1,), countdown=3600).id
    page = visit(f"{url}task?id={task_id}")
    press(page, "Reschedule …")
    page.get_by_label("New due time").fill("1s")
    press(page, "Reschedule")
    wait_until_it_ran(worker, task_id)


def test_a_dead_letter_is_requeued_and_runs(
    visit: Visits, url: str, app: Celery, client: redis.Redis, worker: Worker
) -> None:
    task_id, message = message_of(app, client, "shop.orders.ship", 1, eta=None)
    raw = dead_letter.pack(message, reason=dead_letter.DELIVERY_LIMIT, deliveries=6)
    (letter_id,) = bury(client, "celery", raw)
    page = visit(f"{url}dead?queue=celery")
    select(page, letter_id)
    press(page, "Requeue …", "Requeue")
    expect(said(page)).to_have_text("1 message requeued.")
    wait_until_it_ran(worker, task_id)


def test_the_workers(visit: Visits, url: str, app: Celery, worker: Worker) -> None:
    wait_until_it_ran(worker, app.tasks["shop.orders.ship"].apply_async((1,), countdown=1).id)
    busy = app.tasks["shop.stock.count"].apply_async((5.0,))
    page = visit(f"{url}workers")
    row = page.locator("#workers tbody tr")
    expect(row).to_have_count(1)
    node = f"w{id(worker):x}@{socket.gethostname()}"  # as Celery has it
    expect(row.get_by_role("rowheader")).to_have_text(f"{node} process {worker.pid}")
    expect(row.locator("td").first).to_contain_text("celery")
    expect(row).to_contain_text("lasts")
    expect(row).to_contain_text("1 message")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{node}:{worker.pid}")
    expect(page.locator("tbody tr")).to_have_count(1)
    for text in ("shop.stock.count", "(5.0,)", busy.id):
        expect(page.locator("tbody tr")).to_contain_text(text)
    page.get_by_role("link", name="All workers").click()
    wait_until_it_ran(worker, busy.id)
    expect(row).to_contain_text("0 messages")
    expect(row.locator("td").last).to_contain_text("celery")


def test_a_periodic_task_of_the_configuration(visit: Visits, url: str, app: Celery, worker: Worker) -> None:
    wait_until(lambda: any(entry.name == "tidy carts" for entry in app.delayq.schedule), "the worker plans")
    page = visit(f"{url}periodic")
    page.get_by_role("link", name="tidy carts").click()
    expect(page.locator("main")).to_contain_text("It is defined in code.")
    for name in ("Remove …", "Save"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.locator("dl ol li")).to_have_count(5)
    press(page, "Pause")
    expect(said(page)).to_have_text("Paused.")
    expect(page.locator("dl")).to_contain_text("paused")
    press(page, "Resume")
    expect(said(page)).to_have_text("Resumed.")
    ran = worker.log.count("Task shop.carts.tidy")
    press(page, "Run now …")
    expect(page.get_by_role("heading", level=1)).to_have_text("Run tidy carts now")
    press(page, "Run now")
    expect(said(page)).to_have_text("Sent.")
    wait_until(lambda: worker.log.count("Task shop.carts.tidy") > ran + 1, "it is received, and succeeds")


def test_a_periodic_task_from_beginning_to_end(visit: Visits, url: str, app: Celery, worker: Worker) -> None:
    page = visit(f"{url}periodic")
    page.get_by_text("Add a periodic task").click()
    visit.watch(page).expect("status of 400")
    fields = {"Name": "each second", "Task": "shop.orders.ship", "Schedule": "often", "Arguments": "[1, "}
    for label, value in fields.items():
        page.get_by_label(label, exact=label in ("Name", "Task")).fill(value)
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Maximum number of runs").fill("3")
    press(page, "Add …")
    expect(page.get_by_role("alert")).to_contain_text("often")
    for label, value in fields.items():
        expect(page.get_by_label(label, exact=label in ("Name", "Task"))).to_have_value(value)
    page.get_by_label("Schedule").fill("1s")
    press(page, "Add …")
    expect(page.get_by_role("alert")).to_contain_text("'[1,' is not valid JSON")
    page.get_by_label("Arguments").fill("4711")
    press(page, "Add …")
    expect(page.locator("#preview li")).to_have_count(3)
    press(page, "Add")
    expect(said(page)).to_have_text("each second added.")
    page.goto(f"{url}periodic")
    row = page.locator("tbody tr").filter(has_text="each second")
    expect(row.locator("td").last).to_have_text("3")
    expect(row).to_contain_text("ended")

    row.get_by_role("link").click()
    page.get_by_text("Edit", exact=True).click()
    expect(page.get_by_label("Arguments")).to_have_value("4711")
    page.get_by_label("Schedule").fill("0 0 31 2 x")
    press(page, "Save …")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Schedule").fill("0 6 * * mon-fri")
    page.get_by_label("Maximum number of runs").fill("")
    press(page, "Save …")
    expect(page.locator("#preview li")).to_have_count(5)
    expect(page.locator("#preview li").first).to_contain_text("06:00:00 UTC")
    press(page, "Save")
    expect(said(page)).to_have_text("Saved.")
    entry = app.delayq.schedule.get("each second")
    assert (entry.when, list(entry.args), entry.timing) == ("0 6 * * mon-fri", [4711], {})

    press(page, "Remove …")
    expect(page.get_by_role("heading", level=1)).to_have_text("Remove each second")
    page.get_by_role("link", name="Back").click()
    press(page, "Remove …", "Remove for good")
    expect(said(page)).to_have_text("each second removed.")
    assert "each second" not in {entry.name for entry in app.delayq.schedule}
    page.get_by_role("link", name="All periodic tasks").click()
    expect(page.get_by_role("link", name="each second")).to_have_count(0)
    visit.watch(page).expect("status of 404")
    page.goto(f"{url}entry?name=each+second")
    expect(page.get_by_role("alert")).to_have_text("There is no such periodic task.")
