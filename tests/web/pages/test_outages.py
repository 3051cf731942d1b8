"""Redis is away, or the server of the page: open pages say so, and recover by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from playwright.sync_api import expect

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.web.filling import add_orders
from tests.web.pages.lists import Held, expect_ids, press, rows, said, select
from tests.web.sites import served, standalone
from tests.web.visit import Visits


@pytest.fixture
def broker() -> Iterator[PrivateRedis]:
    """A broker that keeps what it has while it is away."""
    with PrivateRedis("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def url(kind: str, broker: PrivateRedis, ledger_url: str) -> Iterator[str]:
    with served(kind, broker=brokers.url_of(broker), ledger=ledger_url) as url:
        yield url


def test_redis_goes_away_and_comes_back(url: str, visit: Visits, app: Celery, broker: PrivateRedis) -> None:
    """For a page that was open before, for one that is opened meanwhile, and for a change."""
    ids = add_orders(app, 3)
    page, changing = visit(f"{url}waiting"), visit(f"{url}waiting")
    select(changing, ids[0])
    broker.stop()
    opened = visit(f"{url}waiting#tasks")
    press(changing, "Cancel …")
    for each in (page, opened, changing):
        visit.watch(each).expect("status of 503")
        expect(each.locator("#notice")).to_contain_text(f"127.0.0.1:{broker.port}")
        expect(each.locator("#notice")).to_contain_text("This page tries again by itself.")
    expect(opened.get_by_role("heading", level=1)).to_have_text("Redis cannot be read")
    expect(rows(page)).to_have_count(3)  # as it was
    broker.start()
    for each in (page, opened, changing):
        expect(each.get_by_role("heading", level=1)).to_have_text("Waiting")
        expect(each.locator("#notice")).to_be_empty()
        expect_ids(each, ids)


@pytest.mark.thorough
def test_the_web_server_goes_away_and_comes_back(
    visit: Visits, app: Celery, broker: PrivateRedis, ledger_url: str
) -> None:
    ids = add_orders(app, 3)
    with standalone(broker=brokers.url_of(broker), ledger=ledger_url) as site:
        url = site.url
        page = visit(f"{url}waiting")
        with page.expect_response(f"{url}waiting*"):
            pass  # it has refreshed itself, so its icon has come, too
    visit.watch(page).expect("ERR_CONNECTION_REFUSED")
    expect(page.locator("#notice")).to_contain_text("The server of this page does not answer.")
    expect_ids(page, ids)
    app.delayq.cancel(ids[0])
    port = url.rpartition(":")[2].strip("/")
    with standalone("--port", port, broker=brokers.url_of(broker), ledger=ledger_url):
        expect_ids(page, ids[1:])
        expect(page.locator("#notice")).to_be_empty()


@pytest.mark.thorough
def test_redis_goes_away_in_the_middle_of_many_tasks(
    url: str, visit: Visits, app: Celery, broker: PrivateRedis
) -> None:
    add_orders(app, 1500, apart_s=1)
    page = visit(f"{url}waiting?queue=celery")
    visit.watch(page).expect("status of 503")
    page.get_by_role("radio", name="all that match").check()
    with Held(page, "waiting", after=2) as held:
        press(page, "Cancel …", "Cancel for good")
        expect(page.locator("#progress")).to_contain_text("1,000 tasks cancelled.")
        broker.stop()
        held.go_on()
    expect(page.locator("#notice")).to_contain_text(f"127.0.0.1:{broker.port}")
    expect(page.locator("#progress")).to_contain_text("1,000 tasks cancelled.")
    broker.start()
    press(page, "Continue")
    expect(page.locator("#progress")).to_contain_text("1,500 tasks cancelled.")
    expect(page.locator("#progress")).to_contain_text("All done.")
    page.get_by_role("link", name="Back to the list").click()
    expect(page.get_by_text("No waiting tasks match.")).to_be_visible()
    assert said(page).count() == 0
